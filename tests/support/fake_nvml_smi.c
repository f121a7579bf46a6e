/* What the smi listener asks for, as part of the fake NVML: fake_nvml.c includes this file at its
 * end. More lines of its configuration:
 *
 *     field I ID[/SCOPE] TYPE VALUE [PER_SECOND [STEP_S [WRAP]]]
 *                              a field of GPU I; TYPE is double, uint, ulong, ull, sll or int. It
 *                              grows with the clock from its time 0, in steps if STEP_S is not 0,
 *                              and starts again from 0 at WRAP
 *     field I ID[/SCOPE] error CODE
 *     fields I LEAST           fields of LEAST and above are not known to GPU I's driver
 *     sm I PID PERCENT [AGE_US]     a sample of a process' utilisation, so old
 *     reasons I MASK           nvmlClocksEventReasons
 *     power_limit I MW         as enforced
 *     memory_utilization I PERCENT
 *     mig_memory I*100+GI BYTES     what is used of the memory of a GPU instance; without this, it
 *                              has the memory of the whole GPU
 *     xid I NUMBER [GI CI]     an XID error; lines must only be added
 *     no_events I 1            GPU I cannot tell of events
 */
enum { FIELDS_END = 308, XID_EVENT = 0x8, TEMPERATURE_V1 = 0x0100000C };

typedef struct { unsigned pid; unsigned long long time_us; unsigned sm, memory, encoder, decoder; } Sample;
typedef struct { void *device; unsigned long long type, data; unsigned gi, ci; } EventData;
typedef struct { unsigned version, sensor; int temperature; } Temperature;
typedef struct { int alive; unsigned watched; unsigned long long seen; } EventSet;

_Static_assert(sizeof(Sample) == 32, "nvmlProcessUtilizationSample_t");
_Static_assert(sizeof(EventData) == 32, "nvmlEventData_t");

static unsigned long long wall_us(void) {
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    return now.tv_sec * 1000000ull + now.tv_nsec / 1000;
}

static int type_of(const char *name) {
    static const char *names[] = {"double", "uint", "ulong", "ull", "sll", "int"};
    for (int i = 0; i < 6; i++)
        if (!strcmp(name, names[i])) return i;
    abort(); /* a mistake in the test */
}

static void put(FieldValue *field, double number) {
    field->value.ull = 0;
    switch (field->type) {
    case 0: field->value.d = number; break;
    case 1: field->value.ui = (unsigned)number; break;
    case 2: field->value.ul = (unsigned long)number; break;
    case 3: field->value.ull = (unsigned long long)number; break;
    case 4: field->value.sll = (long long)number; break;
    case 5: field->value.si = (int)number; break;
    }
}

static void answer(int gpu, FieldValue *field) {
    FILE *file = config();
    char line[256], which[32], type[16];
    int index;
    field->timestamp = wall_us();
    field->latency = 1;
    field->code = NOT_SUPPORTED;
    if (!field->id || field->id >= number("fields", gpu, FIELDS_END)) field->code = INVALID_ARGUMENT;
    while (file && next_line(line, sizeof line, file)) {
        double base, rate = 0, step = 0, wrap = 0;
        unsigned id, scope = 0;
        int read = sscanf(line, "field %d %31s %15s %lf %lf %lf %lf", &index, which, type, &base,
                          &rate, &step, &wrap);
        if (read < 4 || index != gpu || sscanf(which, "%u/%u", &id, &scope) < 1) continue;
        if (id != field->id || field->code == INVALID_ARGUMENT || scope != field->scope) continue;
        if (!strcmp(type, "error")) {
            field->code = (int)base;
            continue;
        }
        double passed = seconds();
        if (step > 0) passed = (unsigned long long)(passed / step + 1e-9) * step;
        base += rate * passed;
        if (wrap > 0) base -= (unsigned long long)(base / wrap) * wrap;
        field->code = SUCCESS;
        field->type = type_of(type);
        put(field, base);
    }
    if (file) fclose(file);
}

int nvmlDeviceGetFieldValues(void *handle, int count, FieldValue *values) {
    BEGIN_ON(handle, "%d %d", device_of(handle), count)
    if (count < 1 || !values) return INVALID_ARGUMENT;
    for (int i = 0; i < count; i++) {
        note("field %d %u/%u", device_of(handle), values[i].id, values[i].scope);
        answer(device_of(handle), &values[i]);
    }
    return SUCCESS;
}

int nvmlDeviceGetProcessUtilization(void *handle, Sample *into, unsigned *count,
                                    unsigned long long since_us) {
    BEGIN_ON(handle, "%d %u %llu", device_of(handle), *count, since_us)
    if (kind_of(handle) || mig_on(device_of(handle))) return NOT_SUPPORTED;
    FILE *file = config();
    char line[256];
    int index;
    unsigned found = 0, room = into ? *count : 0;
    while (file && next_line(line, sizeof line, file)) {
        Sample one = {0};
        unsigned long long age = 0;
        if (sscanf(line, "sm %d %u %u %llu", &index, &one.pid, &one.sm, &age) < 3) continue;
        one.time_us = wall_us() - age;
        if (index != device_of(handle) || one.time_us <= since_us) continue;
        if (found < room) into[found] = one;
        found++;
    }
    if (file) fclose(file);
    *count = found;
    if (!found) return NOT_FOUND;
    return found > room ? INSUFFICIENT_SIZE : SUCCESS;
}

static int reasons(void *handle, unsigned long long *mask) {
    *mask = number("reasons", device_of(handle), NOT_AVAILABLE);
    return *mask == NOT_AVAILABLE ? NOT_SUPPORTED : SUCCESS;
}

int nvmlDeviceGetCurrentClocksEventReasons(void *handle, unsigned long long *mask) {
    BEGIN_ON(handle, "%d", device_of(handle))
    return reasons(handle, mask);
}

int nvmlDeviceGetCurrentClocksThrottleReasons(void *handle, unsigned long long *mask) {
    BEGIN_ON(handle, "%d", device_of(handle))
    return reasons(handle, mask);
}

int nvmlDeviceGetEnforcedPowerLimit(void *handle, unsigned *milliwatts) {
    BEGIN_ON(handle, "%d", device_of(handle))
    *milliwatts = number("power_limit", device_of(handle), 0);
    return *milliwatts ? SUCCESS : NOT_SUPPORTED;
}

int nvmlDeviceGetTemperatureV(void *handle, Temperature *temperature) {
    BEGIN_ON(handle, "%d %x", device_of(handle), temperature->version)
    if (temperature->version != TEMPERATURE_V1) return VERSION_MISMATCH;
    if (temperature->sensor != 0) return INVALID_ARGUMENT;
    temperature->temperature = value(handle, 6);
    return SUCCESS;
}

/* ---- Events: those that were there before a GPU was registered are not told ---- */

int nvmlEventSetCreate(EventSet **set) {
    BEGIN("%s", "")
    *set = calloc(1, sizeof **set);
    (*set)->alive = 1;
    return SUCCESS;
}

/* The next event that the set has not seen, of the GPUs given. */
static int next_event(EventSet *set, unsigned gpus, EventData *event) {
    FILE *file = config();
    char line[256];
    int gpu, order = 0, found = 0;
    while (file && !found && next_line(line, sizeof line, file)) {
        unsigned long long data;
        unsigned gi = ~0u, ci = ~0u;
        if (sscanf(line, "xid %d %llu %u %u", &gpu, &data, &gi, &ci) < 2) continue;
        if ((gpus >> gpu & 1) && !(set->seen >> order & 1)) {
            set->seen |= 1ull << order;
            *event = (EventData){handle_of(0, gpu, 0, 0), XID_EVENT, data, gi, ci};
            found = 1;
        }
        order++;
    }
    if (file) fclose(file);
    return found;
}

int nvmlDeviceRegisterEvents(void *handle, unsigned long long types, EventSet *set) {
    BEGIN_ON(handle, "%d %llx", device_of(handle), types)
    EventData before;
    if (!set || !set->alive || kind_of(handle)) return INVALID_ARGUMENT;
    if (number("no_events", device_of(handle), 0) || types & ~(unsigned long long)XID_EVENT)
        return NOT_SUPPORTED;
    if (set->watched >> device_of(handle) & 1) return SUCCESS;
    while (next_event(set, 1u << device_of(handle), &before)) continue;
    set->watched |= 1u << device_of(handle);
    return SUCCESS;
}

static int wait_for_event(EventSet *set, EventData *event, unsigned timeout_ms) {
    if (!set || !set->alive) return INVALID_ARGUMENT;
    if (next_event(set, set->watched, event)) return SUCCESS; /* that of the loss itself, too */
    for (int gpu = 0; gpu < 32; gpu++)
        if ((set->watched >> gpu & 1) && state_of(gpu)) return state_of(gpu);
    usleep(timeout_ms * 1000);
    return TIMEOUT;
}

int nvmlEventSetWait_v2(EventSet *set, EventData *event, unsigned timeout_ms) {
    BEGIN("%u", timeout_ms)
    return wait_for_event(set, event, timeout_ms);
}

/* The first version ends before the instances. */
int nvmlEventSetWait(EventSet *set, void *event, unsigned timeout_ms) {
    BEGIN("%u", timeout_ms)
    EventData all;
    int code = wait_for_event(set, &all, timeout_ms);
    if (code == SUCCESS) memcpy(event, &all, sizeof all - 2 * sizeof(unsigned));
    return code;
}

int nvmlEventSetFree(EventSet *set) {
    BEGIN("%s", "")
    if (!set || !set->alive) return INVALID_ARGUMENT;
    set->alive = 0; /* not freed: who uses it afterwards is found out */
    return SUCCESS;
}
