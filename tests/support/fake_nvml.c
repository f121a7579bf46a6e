/* A stand-in for NVIDIA's libnvidia-ml.so.1: the functions that radt calls, with the layouts of
 * nvml.h, so that pynvml's own structures are put to the test.
 *
 * $FAKE_NVML names a file that is read on every call, so that a test can change the "hardware"
 * under way. A line is a key and numbers:
 *
 *     count N                  number of GPUs
 *     driver VERSION
 *     name I TEXT              what GPU I is called
 *     fail FUNCTION CODE       the function returns this error
 *     crash FUNCTION           the function takes the process down before it does anything
 *     crash_after FUNCTION     likewise (SIGKILL), after it has done what it does
 *     hang FUNCTION            the function does not return for as long as this line is there
 *     gpu I UTIL TOTAL RESERVED USED POWER_MW ENERGY_MJ TEMPERATURE SM_MHZ MEMORY_MHZ
 *     process I PID BYTES [GI CI]   a compute process on GPU I; BYTES "n/a" if not known
 *     mps I PID BYTES [GI CI]       likewise, a client of MPS
 *     minor I N                the number of GPU I's device file (I if not said)
 *     compute_mode I N         nvmlComputeMode_t of GPU I (0 if not said)
 *     capability I N           major compute capability of GPU I (8 if not said)
 *     cuda 0 N                 the driver's CUDA version (12080 if not said)
 *     unprivileged             the caller may neither change MIG nor see all of it
 *     mig I CURRENT PENDING    GPU I can do MIG, and its modes (0 or 1)
 *     slices I N               how many compute slices GPU I has (7 if not said)
 *     profile I INDEX ID SLICES COUNT SM MEMORY_MB OFA NAME
 *                              a GPU instance profile: NVML's index and the driver's id of it
 *     placement I ID START SIZE     where an instance of this profile may lie
 *     existing I ID START [SLICES...]   there from the start: a GPU instance, and in it compute
 *                              instances of so many slices
 *     uuid I TEXT              the UUID of GPU I (GPU-fake-I if not said)
 *     mig_uuid I GI CI TEXT    likewise, of a MIG device (MIG-fake-I-GI-CI)
 *     lost I                   GPU I has fallen off the bus
 *     broken I CODE            every function on GPU I returns this error
 *     generation I N           handles of another generation are worth nothing (after a reset)
 *     at SECONDS LINE          the line counts from this time on
 *     until SECONDS LINE       the line counts before this time; may follow "at SECONDS"
 *
 * Of lines about the same thing, the last counts. fake_nvml_smi.c has more: fields, samples of
 * processes, events; fake_nvml_gpm.c has GPM.
 *
 * $FAKE_NVML_CLOCK names a file with the seconds on the clock of the hardware; without it, time is
 * monotonic time.
 *
 * $FAKE_NVML_STATE names the file that holds the MIG instances that there are, so that they outlive
 * the process; "existing" lines are taken over when it is not there.
 *
 * $FAKE_NVML_LOG gets a line per call: the function's name and what it was asked.
 */
#include <stdarg.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <time.h>
#include <unistd.h>

enum { SUCCESS = 0, UNINITIALIZED = 1, INVALID_ARGUMENT = 2, NOT_SUPPORTED = 3, NO_PERMISSION = 4 };
enum { NOT_FOUND = 6, INSUFFICIENT_SIZE = 7, TIMEOUT = 10, GPU_IS_LOST = 15, IN_USE = 19, INSUFFICIENT_RESOURCES = 23 };
enum { VERSION_MISMATCH = 25 };
#define MEMORY_V2 0x02000028u
#define GPU_INSTANCE_PROFILE_INFO_V2 0x02000098u
#define COMPUTE_INSTANCE_PROFILE_INFO_V2 0x02000088u
#define NOT_AVAILABLE (~0ull)

typedef struct { unsigned gpu, memory; } Utilization;
typedef struct { unsigned version; unsigned long long total, reserved, free, used; } Memory;
typedef struct { unsigned long long total, free, used; } MemoryV1;
typedef struct { unsigned pid; unsigned long long used; unsigned gi, ci; } Process;
typedef struct { unsigned pid; unsigned long long used; } ProcessV1;
typedef struct { unsigned start, size; } Placement;
typedef struct {
    unsigned version, id, p2p, slices, count, multiprocessors, copy, decoders, encoders, jpegs, ofas;
    unsigned long long memory_mb;
    char name[96];
} GpuInstanceProfileInfo;
typedef struct {
    unsigned id, p2p, slices, count, multiprocessors, copy, decoders, encoders, jpegs, ofas;
    unsigned long long memory_mb;
} GpuInstanceProfileInfoV1;
typedef struct { void *device; unsigned id, profile; Placement placement; } GpuInstanceInfo;
typedef struct {
    unsigned version, id, slices, count, multiprocessors, copy, decoders, encoders, jpegs, ofas;
    char name[96];
} ComputeInstanceProfileInfo;
typedef struct {
    void *device, *gpu_instance;
    unsigned id, profile;
    Placement placement;
} ComputeInstanceInfo;
typedef struct {
    unsigned multiprocessors, copy, decoders, encoders, jpegs, ofas, gi_slices, ci_slices;
    unsigned long long memory_mb;
} Attributes;
typedef struct {
    unsigned id, scope;
    long long timestamp, latency;
    int type, code;
    union { double d; unsigned ui; unsigned long ul; unsigned long long ull; long long sll; int si; } value;
} FieldValue;
enum { ENERGY_FIELD = 83 };
static void answer(int gpu, FieldValue *field);

_Static_assert(sizeof(GpuInstanceProfileInfo) == 0x98, "nvmlGpuInstanceProfileInfo_v2_t");
_Static_assert(sizeof(ComputeInstanceProfileInfo) == 0x88, "nvmlComputeInstanceProfileInfo_v2_t");
_Static_assert(sizeof(FieldValue) == 40, "nvmlFieldValue_t");

static int initialised = 0;

static void note(const char *format, ...) {
    const char *path = getenv("FAKE_NVML_LOG");
    FILE *file = path ? fopen(path, "a") : NULL;
    if (!file) return;
    va_list arguments;
    va_start(arguments, format);
    vfprintf(file, format, arguments);
    va_end(arguments);
    fputc('\n', file);
    fclose(file);
}

static FILE *config(void) {
    const char *path = getenv("FAKE_NVML");
    return path ? fopen(path, "r") : NULL;
}

/* Seconds on the clock of the hardware. */
static double seconds(void) {
    const char *path = getenv("FAKE_NVML_CLOCK");
    FILE *file = path ? fopen(path, "r") : NULL;
    struct timespec now;
    double told = 0;
    if (!path) {
        clock_gettime(CLOCK_MONOTONIC, &now);
        return now.tv_sec + now.tv_nsec / 1e9;
    }
    if (!file || fscanf(file, "%lf", &told) != 1) abort();
    fclose(file);
    return told;
}

/* The next line that counts now, without what says when it counts; as fgets. */
static char *next_line(char *line, int size, FILE *file) {
    while (fgets(line, size, file)) {
        double when;
        char word[8];
        int used, counts = 1;
        while (sscanf(line, "%7s %lf%n", word, &when, &used) == 2 &&
               (!strcmp(word, "at") || !strcmp(word, "until"))) {
            double now = seconds();
            counts &= !strcmp(word, "at") ? now >= when : now < when;
            memmove(line, line + used + 1, strlen(line + used));
        }
        if (counts) return line;
    }
    return NULL;
}

/* What every function on a GPU returns: SUCCESS, or what is wrong with it. */
static int state_of(int gpu) {
    FILE *file = config();
    char line[256];
    int index, code, result = SUCCESS;
    while (file && next_line(line, sizeof line, file)) {
        if (sscanf(line, "lost %d", &index) == 1 && index == gpu) result = GPU_IS_LOST;
        if (sscanf(line, "broken %d %d", &index, &code) == 2 && index == gpu) result = code;
    }
    if (file) fclose(file);
    return result;
}

/* What a function is to return before it does anything. */
static int fate(const char *function) {
    FILE *file = config();
    char line[256], name[128];
    int code, result = SUCCESS, hangs = 0;
    while (file && next_line(line, sizeof line, file)) {
        if (sscanf(line, "fail %127s %d", name, &code) == 2 && !strcmp(name, function)) result = code;
        if (sscanf(line, "crash %127s", name) == 1 && !strcmp(name, function)) abort();
        hangs |= sscanf(line, "hang %127s", name) == 1 && !strcmp(name, function);
    }
    if (file) fclose(file);
    if (hangs) {
        usleep(10000);
        return fate(function);
    }
    if (result == SUCCESS && !initialised && strcmp(function, "nvmlInitWithFlags"))
        result = UNINITIALIZED;
    return result;
}

#define BEGIN(format, ...)                                      \
    note("%s " format, __func__, __VA_ARGS__);                  \
    { int code = fate(__func__); if (code != SUCCESS) return code; }

/* Likewise, of a function on a device. */
#define BEGIN_ON(handle, format, ...)                           \
    BEGIN(format, __VA_ARGS__)                                  \
    if (state_of(device_of(handle))) return state_of(device_of(handle)); \
    if (outdated(handle)) return INVALID_ARGUMENT;

/* The end of a function that changes something: whether the caller lives to hear of it. */
static int ended(const char *function) {
    FILE *file = config();
    char line[256], name[128];
    while (file && next_line(line, sizeof line, file))
        if (sscanf(line, "crash_after %127s", name) == 1 && !strcmp(name, function))
            kill(getpid(), SIGKILL);
    if (file) fclose(file);
    return SUCCESS;
}
#define END return ended(__func__);

/* Handles: a GPU is its index + 1; instances carry kind, GPU, GPU instance, compute instance. */
enum { MIG_DEVICE = 1, GPU_INSTANCE = 2, COMPUTE_INSTANCE = 3 };

static unsigned long long number(const char *word, int wanted, unsigned long long otherwise);

static void *handle_of(int kind, int gpu, int gi, int ci) {
    long generation = number("generation", gpu, 0);
    return (void *)(((long)kind << 48) | ((long)gi << 32) | ((long)ci << 16) | (generation << 8) |
                    (long)(gpu + 1));
}
static int kind_of(void *handle) { return (int)((long)handle >> 48); }
static int gi_of(void *handle) { return (int)((long)handle >> 32 & 0xffff); }
static int ci_of(void *handle) { return (int)((long)handle >> 16 & 0xffff); }
static int device_of(void *handle) { return (int)((long)handle & 0xff) - 1; }
static int outdated(void *handle) {
    return ((long)handle >> 8 & 0xff) != (long)number("generation", device_of(handle), 0);
}

static unsigned gpu_count(void) {
    FILE *file = config();
    char line[256];
    unsigned count = 0;
    while (file && next_line(line, sizeof line, file)) sscanf(line, "count %u", &count);
    if (file) fclose(file);
    return count;
}

/* The number of a line "WORD I NUMBER". */
static unsigned long long number(const char *word, int wanted, unsigned long long otherwise) {
    FILE *file = config();
    char line[256], name[64];
    int index;
    unsigned long long told;
    while (file && next_line(line, sizeof line, file))
        if (sscanf(line, "%63s %d %llu", name, &index, &told) == 3 && !strcmp(name, word) &&
            index == wanted)
            otherwise = told;
    if (file) fclose(file);
    return otherwise;
}

/* One of the nine numbers of a GPU's line. */
static unsigned long long value(void *handle, int which) {
    FILE *file = config();
    char line[256];
    int index;
    unsigned long long v[9] = {0}, found = 0;
    while (file && next_line(line, sizeof line, file))
        if (sscanf(line, "gpu %d %llu %llu %llu %llu %llu %llu %llu %llu %llu", &index, v, v + 1,
                   v + 2, v + 3, v + 4, v + 5, v + 6, v + 7, v + 8) == 10 &&
            index == device_of(handle))
            found = v[which];
    if (file) fclose(file);
    return found;
}

/* ---- MIG: what the configuration says, and the instances that there are ---- */

enum { MOST = 64, PROFILES = 0x12 };
typedef struct { int gpu, id, profile, start, size; } Gi;
typedef struct { int gpu, gi, id, slices, start; } Ci;
typedef struct { Gi gis[MOST]; Ci cis[MOST]; int gi_count, ci_count; } State;
typedef struct { int index, id, slices, count, multiprocessors, memory_mb, ofas; char name[64]; } Profile;

static int flag(const char *word) {
    FILE *file = config();
    char line[256], name[128];
    int found = 0;
    while (file && next_line(line, sizeof line, file))
        found |= sscanf(line, "%127s", name) == 1 && !strcmp(name, word);
    if (file) fclose(file);
    return found;
}

static int mig_mode(int gpu, unsigned *current, unsigned *pending) {
    FILE *file = config();
    char line[256];
    int index, found = 0;
    unsigned now, then;
    while (file && next_line(line, sizeof line, file))
        if (sscanf(line, "mig %d %u %u", &index, &now, &then) == 3 && index == gpu)
            *current = now, *pending = then, found = 1;
    if (file) fclose(file);
    return found;
}

static int mig_on(int gpu) {
    unsigned current, pending;
    return mig_mode(gpu, &current, &pending) && current;
}

/* Of a divided GPU, only a privileged caller sees the whole. */
static int hidden_by_mig(void *handle) {
    return !kind_of(handle) && mig_on(device_of(handle)) && flag("unprivileged");
}

static int profile_by(int gpu, int by_id, int wanted, Profile *profile) {
    FILE *file = config();
    char line[256];
    int owner, found = 0;
    Profile one;
    while (!found && file && next_line(line, sizeof line, file))
        if (sscanf(line, "profile %d %d %d %d %d %d %d %d %63s", &owner, &one.index, &one.id,
                   &one.slices, &one.count, &one.multiprocessors, &one.memory_mb, &one.ofas,
                   one.name) == 9 &&
            owner == gpu && (by_id ? one.id : one.index) == wanted)
            *profile = one, found = 1;
    if (file) fclose(file);
    return found;
}

static int placements(int gpu, int id, Placement *into, int room) {
    FILE *file = config();
    char line[256];
    int owner, profile, number = 0;
    Placement one;
    while (file && next_line(line, sizeof line, file))
        if (sscanf(line, "placement %d %d %u %u", &owner, &profile, &one.start, &one.size) == 4 &&
            owner == gpu && profile == id) {
            if (into && number < room) into[number] = one;
            number++;
        }
    if (file) fclose(file);
    return number;
}

static int slices_of(int gpu) {
    FILE *file = config();
    char line[256];
    int index, number, slices = 7;
    while (file && next_line(line, sizeof line, file))
        if (sscanf(line, "slices %d %d", &index, &number) == 2 && index == gpu) slices = number;
    if (file) fclose(file);
    return slices;
}

/* Compute instances lie on multiples of their size, three slices like four. */
static int ci_fits(const State *state, const Gi *gi, int gi_slices, int slices, int start) {
    int step = slices == 3 ? 4 : slices;
    if (start % step || start + slices > gi_slices) return 0;
    for (int i = 0; i < state->ci_count; i++) {
        const Ci *ci = &state->cis[i];
        if (ci->gpu == gi->gpu && ci->gi == gi->id && start < ci->start + ci->slices &&
            ci->start < start + slices)
            return 0;
    }
    return 1;
}

static int ci_offered(int gi_slices, int slices) {
    return slices == gi_slices || (slices < gi_slices && (slices <= 2 || slices == 4)) ||
           (slices == 3 && gi_slices > 4);
}

static void add_ci(State *state, const Gi *gi, int slices, int start) {
    int id = 0;
    for (int i = 0; i < state->ci_count; i++)
        if (state->cis[i].gpu == gi->gpu && state->cis[i].gi == gi->id && state->cis[i].id == id)
            id++, i = -1;
    state->cis[state->ci_count++] = (Ci){gi->gpu, gi->id, id, slices, start};
}

static Gi *add_gi(State *state, int gpu, int profile, Placement where) {
    int id = 1;
    for (int i = 0; i < state->gi_count; i++)
        if (state->gis[i].gpu == gpu && state->gis[i].id == id) id++, i = -1;
    state->gis[state->gi_count] = (Gi){gpu, id, profile, where.start, where.size};
    return &state->gis[state->gi_count++];
}

static State shown;

/* What the "existing" lines of the configuration say. */
static void original(State *state) {
    FILE *file = config();
    char line[256];
    int gpu, profile, start, used;
    while (file && next_line(line, sizeof line, file)) {
        if (sscanf(line, "existing %d %d %d%n", &gpu, &profile, &start, &used) != 3) continue;
        Placement possible[MOST], where = {0, 0};
        int number = placements(gpu, profile, possible, MOST), slices, step, ci_start = 0;
        for (int i = 0; i < number; i++)
            if ((int)possible[i].start == start) where = possible[i];
        Gi *gi = add_gi(state, gpu, profile, where);
        for (char *rest = line + used; sscanf(rest, "%d%n", &slices, &step) == 1; rest += step) {
            while (ci_start < 8 && !ci_fits(state, gi, 8, slices, ci_start)) ci_start++;
            add_ci(state, gi, slices, ci_start);
            ci_start += slices;
        }
    }
    if (file) fclose(file);
}

static State *load(void) {
    const char *path = getenv("FAKE_NVML_STATE");
    FILE *file = path ? fopen(path, "r") : NULL;
    char line[256];
    memset(&shown, 0, sizeof shown);
    if (!file) {
        original(&shown);
        return &shown;
    }
    while (next_line(line, sizeof line, file)) {
        Gi gi;
        Ci ci;
        if (sscanf(line, "gi %d %d %d %d %d", &gi.gpu, &gi.id, &gi.profile, &gi.start, &gi.size) == 5)
            shown.gis[shown.gi_count++] = gi;
        if (sscanf(line, "ci %d %d %d %d %d", &ci.gpu, &ci.gi, &ci.id, &ci.slices, &ci.start) == 5)
            shown.cis[shown.ci_count++] = ci;
    }
    fclose(file);
    return &shown;
}

static void save(const State *state) {
    const char *path = getenv("FAKE_NVML_STATE");
    char temporary[4096];
    if (!path) abort(); /* a test that creates instances must say where they are kept */
    snprintf(temporary, sizeof temporary, "%s.%d", path, getpid());
    FILE *file = fopen(temporary, "w");
    if (!file) abort();
    for (int i = 0; i < state->gi_count; i++) {
        const Gi *gi = &state->gis[i];
        fprintf(file, "gi %d %d %d %d %d\n", gi->gpu, gi->id, gi->profile, gi->start, gi->size);
    }
    for (int i = 0; i < state->ci_count; i++) {
        const Ci *ci = &state->cis[i];
        fprintf(file, "ci %d %d %d %d %d\n", ci->gpu, ci->gi, ci->id, ci->slices, ci->start);
    }
    fclose(file);
    rename(temporary, path);
}

static Gi *find_gi(State *state, int gpu, int id) {
    for (int i = 0; i < state->gi_count; i++)
        if (state->gis[i].gpu == gpu && state->gis[i].id == id) return &state->gis[i];
    return NULL;
}

static Ci *find_ci(State *state, int gpu, int gi, int id) {
    for (int i = 0; i < state->ci_count; i++)
        if (state->cis[i].gpu == gpu && state->cis[i].gi == gi && state->cis[i].id == id)
            return &state->cis[i];
    return NULL;
}

/* Whether a process of the configuration is on the compute instance. */
static int in_use(int gpu, int gi, int ci) {
    FILE *file = config();
    char line[256], name[32], bytes[64];
    int index, on_gi, on_ci, found = 0;
    unsigned pid;
    while (file && next_line(line, sizeof line, file))
        if (sscanf(line, "%31s %d %u %63s %d %d", name, &index, &pid, bytes, &on_gi, &on_ci) == 6 &&
            (!strcmp(name, "process") || !strcmp(name, "mps")) && index == gpu && on_gi == gi &&
            on_ci == ci)
            found = 1;
    if (file) fclose(file);
    return found;
}

/* Changes of several processes at once take turns. */
static int locked(void) {
    char path[4096];
    snprintf(path, sizeof path, "%s.lock", getenv("FAKE_NVML_STATE") ? getenv("FAKE_NVML_STATE") : "");
    FILE *file = fopen(path, "a");
    if (!file) abort();
    flock(fileno(file), LOCK_EX);
    return fileno(file);
}

/* What may be done with MIG on this GPU: SUCCESS, or why not. */
static int may_manage(void *handle) {
    unsigned current, pending;
    if (!mig_mode(device_of(handle), &current, &pending)) return NOT_SUPPORTED;
    return flag("unprivileged") ? NO_PERMISSION : SUCCESS;
}

int nvmlInitWithFlags(unsigned flags) {
    BEGIN("%u", flags)
    initialised++;
    return SUCCESS;
}

int nvmlShutdown(void) {
    BEGIN("%d", initialised)
    initialised--;
    return SUCCESS;
}

const char *nvmlErrorString(int code) { return code == 9 ? "Driver Not Loaded" : "Fake Error"; }

int nvmlDeviceGetCount_v2(unsigned *count) {
    BEGIN("%s", "")
    *count = gpu_count();
    return SUCCESS;
}

int nvmlDeviceGetHandleByIndex_v2(unsigned index, void **handle) {
    BEGIN("%u", index)
    if (index >= gpu_count()) return INVALID_ARGUMENT;
    if (state_of(index)) return state_of(index);
    *handle = handle_of(0, index, 0, 0);
    return SUCCESS;
}

/* The UUID of a GPU, or of a MIG device if GI is not -1. */
static void uuid_of(int gpu, int gi, int ci, char *uuid) {
    FILE *file = config();
    char line[256], text[96];
    int index, on_gi, on_ci;
    if (gi < 0)
        sprintf(uuid, "GPU-fake-%d", gpu);
    else
        sprintf(uuid, "MIG-fake-%d-%d-%d", gpu, gi, ci);
    while (file && next_line(line, sizeof line, file)) {
        if (gi < 0 && sscanf(line, "uuid %d %95s", &index, text) == 2 && index == gpu)
            strcpy(uuid, text);
        if (gi >= 0 && sscanf(line, "mig_uuid %d %d %d %95s", &index, &on_gi, &on_ci, text) == 4 &&
            index == gpu && on_gi == gi && on_ci == ci)
            strcpy(uuid, text);
    }
    if (file) fclose(file);
}

int nvmlDeviceGetHandleByUUID(const char *uuid, void **handle) {
    BEGIN("%s", uuid)
    char own[96];
    State *state = load();
    for (unsigned index = 0; index < gpu_count(); index++) /* "if any GPU has fallen off the bus" */
        if (state_of(index) == GPU_IS_LOST) return GPU_IS_LOST;
    for (unsigned index = 0; index < gpu_count(); index++) {
        uuid_of(index, -1, 0, own);
        if (!strcmp(own, uuid)) {
            if (state_of(index)) return state_of(index);
            *handle = handle_of(0, index, 0, 0);
            return SUCCESS;
        }
    }
    for (int i = 0; i < state->ci_count; i++) {
        Ci *ci = &state->cis[i];
        uuid_of(ci->gpu, ci->gi, ci->id, own);
        if (!strcmp(own, uuid)) {
            if (state_of(ci->gpu)) return state_of(ci->gpu);
            *handle = handle_of(MIG_DEVICE, ci->gpu, ci->gi, ci->id);
            return SUCCESS;
        }
    }
    return NOT_FOUND;
}

int nvmlDeviceGetIndex(void *handle, unsigned *index) {
    BEGIN_ON(handle, "%d", device_of(handle))
    *index = device_of(handle);
    return SUCCESS;
}

int nvmlDeviceGetMinorNumber(void *handle, unsigned *minor) {
    BEGIN_ON(handle, "%d", device_of(handle))
    *minor = number("minor", device_of(handle), device_of(handle));
    return SUCCESS;
}

int nvmlDeviceGetUtilizationRates(void *handle, Utilization *rates) {
    BEGIN_ON(handle, "%d", device_of(handle))
    if (mig_on(device_of(handle))) return NOT_SUPPORTED;
    rates->gpu = value(handle, 0);
    rates->memory = number("memory_utilization", device_of(handle), 1);
    return SUCCESS;
}

int nvmlDeviceGetMemoryInfo_v2(void *handle, Memory *memory) {
    BEGIN_ON(handle, "%d %x", device_of(handle), memory->version)
    if (memory->version != MEMORY_V2) return VERSION_MISMATCH;
    if (hidden_by_mig(handle)) return NO_PERMISSION;
    int instance = device_of(handle) * 100 + gi_of(handle);
    unsigned long long used = number("mig_memory", instance, NOT_AVAILABLE);
    if (kind_of(handle) == MIG_DEVICE) {
        Profile profile;
        Gi *gi = find_gi(load(), device_of(handle), gi_of(handle));
        if (!gi || !profile_by(gi->gpu, 1, gi->profile, &profile)) return NOT_FOUND;
        if (used != NOT_AVAILABLE) {
            memory->total = (unsigned long long)profile.memory_mb << 20;
            memory->reserved = 0;
            memory->used = used;
            memory->free = memory->total - memory->used;
            return SUCCESS;
        }
    }
    memory->total = value(handle, 1);
    memory->reserved = value(handle, 2);
    memory->used = value(handle, 3);
    memory->free = memory->total - memory->reserved - memory->used;
    return SUCCESS;
}

int nvmlDeviceGetMemoryInfo(void *handle, MemoryV1 *memory) {
    BEGIN_ON(handle, "%d", device_of(handle))
    if (hidden_by_mig(handle)) return NO_PERMISSION;
    memory->total = value(handle, 1);
    memory->used = value(handle, 2) + value(handle, 3);
    memory->free = memory->total - memory->used;
    return SUCCESS;
}

int nvmlDeviceGetPowerUsage(void *handle, unsigned *milliwatts) {
    BEGIN_ON(handle, "%d", device_of(handle))
    *milliwatts = value(handle, 4);
    return SUCCESS;
}

int nvmlDeviceGetTotalEnergyConsumption(void *handle, unsigned long long *millijoules) {
    BEGIN_ON(handle, "%d", device_of(handle))
    FieldValue energy = {.id = ENERGY_FIELD};
    answer(device_of(handle), &energy);
    *millijoules = energy.code == SUCCESS ? energy.value.ull : value(handle, 5);
    return SUCCESS;
}

int nvmlDeviceGetTemperature(void *handle, int sensor, unsigned *degrees) {
    BEGIN_ON(handle, "%d %d", device_of(handle), sensor)
    if (sensor != 0) return INVALID_ARGUMENT;
    *degrees = value(handle, 6);
    return SUCCESS;
}

int nvmlDeviceGetClockInfo(void *handle, int clock, unsigned *megahertz) {
    BEGIN_ON(handle, "%d %d", device_of(handle), clock)
    if (clock != 1 && clock != 2) return INVALID_ARGUMENT; /* 1 SM, 2 memory */
    *megahertz = value(handle, clock == 1 ? 7 : 8);
    return SUCCESS;
}

static int processes(const char *kind, void *handle, unsigned *count, Process *found) {
    if (hidden_by_mig(handle)) return NO_PERMISSION;
    FILE *file = config();
    char line[256], name[32], bytes[64];
    int index, gi, ci;
    unsigned pid, number = 0, room = found ? *count : 0;
    while (file && next_line(line, sizeof line, file)) {
        int read = sscanf(line, "%31s %d %u %63s %d %d", name, &index, &pid, bytes, &gi, &ci);
        if (read < 4 || strcmp(name, kind) || index != device_of(handle)) continue;
        if (kind_of(handle) == MIG_DEVICE &&
            (read != 6 || gi != gi_of(handle) || ci != ci_of(handle)))
            continue;
        if (number < room) {
            found[number].pid = pid;
            found[number].used = strcmp(bytes, "n/a") ? strtoull(bytes, NULL, 10) : NOT_AVAILABLE;
            found[number].gi = read == 6 ? (unsigned)gi : ~0u;
            found[number].ci = read == 6 ? (unsigned)ci : ~0u;
        }
        number++;
    }
    if (file) fclose(file);
    *count = number;
    return number > room ? INSUFFICIENT_SIZE : SUCCESS;
}

/* The second version has the third's layout; the first, before MIG, pid and memory only. */
static int processes_v1(const char *kind, void *handle, unsigned *count, ProcessV1 *found) {
    Process all[MOST];
    unsigned room = found ? *count : 0;
    *count = MOST;
    int code = processes(kind, handle, count, all);
    if (code != SUCCESS) return code;
    for (unsigned i = 0; i < *count && i < room; i++) found[i] = (ProcessV1){all[i].pid, all[i].used};
    return *count > room ? INSUFFICIENT_SIZE : SUCCESS;
}

int nvmlDeviceGetComputeRunningProcesses(void *handle, unsigned *count, ProcessV1 *found) {
    BEGIN_ON(handle, "%d %u", device_of(handle), *count)
    return processes_v1("process", handle, count, found);
}

int nvmlDeviceGetMPSComputeRunningProcesses(void *handle, unsigned *count, ProcessV1 *found) {
    BEGIN_ON(handle, "%d %u", device_of(handle), *count)
    return processes_v1("mps", handle, count, found);
}

int nvmlDeviceGetComputeRunningProcesses_v2(void *handle, unsigned *count, Process *found) {
    BEGIN_ON(handle, "%d %u", device_of(handle), *count)
    return processes("process", handle, count, found);
}

int nvmlDeviceGetMPSComputeRunningProcesses_v2(void *handle, unsigned *count, Process *found) {
    BEGIN_ON(handle, "%d %u", device_of(handle), *count)
    return processes("mps", handle, count, found);
}

int nvmlDeviceGetComputeRunningProcesses_v3(void *handle, unsigned *count, Process *found) {
    BEGIN_ON(handle, "%d %u", device_of(handle), *count)
    return processes("process", handle, count, found);
}

int nvmlDeviceGetMPSComputeRunningProcesses_v3(void *handle, unsigned *count, Process *found) {
    BEGIN_ON(handle, "%d %u", device_of(handle), *count)
    return processes("mps", handle, count, found);
}

int nvmlSystemGetDriverVersion(char *version, unsigned length) {
    BEGIN("%u", length)
    FILE *file = config();
    char line[256], text[64] = "570.00";
    while (file && next_line(line, sizeof line, file)) sscanf(line, "driver %63s", text);
    if (file) fclose(file);
    snprintf(version, length, "%s", text);
    return SUCCESS;
}

int nvmlDeviceGetName(void *handle, char *name, unsigned length) {
    BEGIN_ON(handle, "%d", device_of(handle))
    FILE *file = config();
    char line[256], text[128] = "Fake GPU", found[128];
    int index;
    while (file && next_line(line, sizeof line, file))
        if (sscanf(line, "name %d %127[^\n]", &index, found) == 2 && index == device_of(handle))
            memcpy(text, found, sizeof text);
    if (file) fclose(file);
    State *state = load();
    Profile profile;
    Gi *gi = find_gi(state, device_of(handle), gi_of(handle));
    Ci *ci = find_ci(state, device_of(handle), gi_of(handle), ci_of(handle));
    if (kind_of(handle) != MIG_DEVICE)
        snprintf(name, length, "%s", text);
    else if (!gi || !ci || !profile_by(gi->gpu, 1, gi->profile, &profile))
        return NOT_FOUND;
    else if (ci->slices == profile.slices)
        snprintf(name, length, "%s MIG %s", text, profile.name);
    else
        snprintf(name, length, "%s MIG %dc.%s", text, ci->slices, profile.name);
    return SUCCESS;
}

int nvmlDeviceGetUUID(void *handle, char *uuid, unsigned length) {
    BEGIN_ON(handle, "%d %d", device_of(handle), kind_of(handle))
    char own[96];
    uuid_of(device_of(handle), kind_of(handle) == MIG_DEVICE ? gi_of(handle) : -1, ci_of(handle), own);
    snprintf(uuid, length, "%s", own);
    return SUCCESS;
}

int nvmlDeviceGetComputeMode(void *handle, unsigned *mode) {
    BEGIN_ON(handle, "%d", device_of(handle))
    FILE *file = config();
    char line[256];
    int index;
    unsigned found;
    if (kind_of(handle) == MIG_DEVICE) return NOT_SUPPORTED;
    *mode = 0;
    while (file && next_line(line, sizeof line, file))
        if (sscanf(line, "compute_mode %d %u", &index, &found) == 2 && index == device_of(handle))
            *mode = found;
    if (file) fclose(file);
    return SUCCESS;
}

int nvmlDeviceGetCudaComputeCapability(void *handle, int *major, int *minor) {
    BEGIN_ON(handle, "%d", device_of(handle))
    *major = number("capability", device_of(handle), 8);
    *minor = 0;
    return SUCCESS;
}

int nvmlSystemGetCudaDriverVersion_v2(int *version) {
    BEGIN("%s", "")
    *version = number("cuda", 0, 12080);
    return SUCCESS;
}

int nvmlDeviceGetMigMode(void *handle, unsigned *current, unsigned *pending) {
    BEGIN_ON(handle, "%d", device_of(handle))
    return mig_mode(device_of(handle), current, pending) ? SUCCESS : NOT_SUPPORTED;
}

int nvmlDeviceGetMaxMigDeviceCount(void *handle, unsigned *count) {
    BEGIN_ON(handle, "%d", device_of(handle))
    unsigned current, pending;
    *count = mig_mode(device_of(handle), &current, &pending) ? 7 : 0;
    return SUCCESS;
}

/* NVML's list has holes; here, the first place is one. */
int nvmlDeviceGetMigDeviceHandleByIndex(void *handle, unsigned index, void **device) {
    BEGIN_ON(handle, "%d %u", device_of(handle), index)
    State *state = load();
    unsigned place = 1;
    if (!mig_on(device_of(handle))) return NOT_FOUND;
    if (index >= 7) return INVALID_ARGUMENT;
    for (int i = 0; i < state->ci_count; i++) {
        Ci *ci = &state->cis[i];
        if (ci->gpu != device_of(handle)) continue;
        if (place++ % 7 == index) {
            *device = handle_of(MIG_DEVICE, ci->gpu, ci->gi, ci->id);
            return SUCCESS;
        }
    }
    return NOT_FOUND;
}

int nvmlDeviceIsMigDeviceHandle(void *handle, unsigned *is) {
    BEGIN_ON(handle, "%d", device_of(handle))
    *is = kind_of(handle) == MIG_DEVICE;
    return SUCCESS;
}

int nvmlDeviceGetDeviceHandleFromMigDeviceHandle(void *handle, void **device) {
    BEGIN_ON(handle, "%d", device_of(handle))
    if (kind_of(handle) != MIG_DEVICE) return INVALID_ARGUMENT;
    *device = handle_of(0, device_of(handle), 0, 0);
    return SUCCESS;
}

int nvmlDeviceGetGpuInstanceId(void *handle, unsigned *id) {
    BEGIN_ON(handle, "%d", gi_of(handle))
    if (kind_of(handle) != MIG_DEVICE) return NOT_SUPPORTED;
    *id = gi_of(handle);
    return SUCCESS;
}

int nvmlDeviceGetComputeInstanceId(void *handle, unsigned *id) {
    BEGIN_ON(handle, "%d", ci_of(handle))
    if (kind_of(handle) != MIG_DEVICE) return NOT_SUPPORTED;
    *id = ci_of(handle);
    return SUCCESS;
}

static int attributes_of(void *handle, Attributes *attributes) {
    State *state = load();
    Profile profile;
    Gi *gi = find_gi(state, device_of(handle), gi_of(handle));
    Ci *ci = find_ci(state, device_of(handle), gi_of(handle), ci_of(handle));
    if (kind_of(handle) != MIG_DEVICE) return NOT_SUPPORTED;
    if (!gi || !ci || !profile_by(gi->gpu, 1, gi->profile, &profile)) return NOT_FOUND;
    memset(attributes, 0, sizeof *attributes);
    attributes->multiprocessors = profile.multiprocessors * ci->slices / profile.slices;
    attributes->gi_slices = profile.slices;
    attributes->ci_slices = ci->slices;
    attributes->memory_mb = profile.memory_mb;
    return SUCCESS;
}

int nvmlDeviceGetAttributes_v2(void *handle, Attributes *attributes) {
    BEGIN_ON(handle, "%d %d", gi_of(handle), ci_of(handle))
    return attributes_of(handle, attributes);
}

/* The first version ends before the numbers of slices. */
int nvmlDeviceGetAttributes(void *handle, unsigned *attributes) {
    BEGIN_ON(handle, "%d %d", gi_of(handle), ci_of(handle))
    Attributes all;
    int code = attributes_of(handle, &all);
    if (code == SUCCESS) memcpy(attributes, &all, 6 * sizeof(unsigned));
    return code;
}

int nvmlDeviceGetGpuInstanceProfileInfoV(void *handle, unsigned index, GpuInstanceProfileInfo *info) {
    BEGIN_ON(handle, "%d %u %x", device_of(handle), index, info->version)
    Profile profile;
    if (info->version != GPU_INSTANCE_PROFILE_INFO_V2) return VERSION_MISMATCH;
    if (index >= PROFILES) return INVALID_ARGUMENT;
    if (!profile_by(device_of(handle), 0, index, &profile)) return NOT_SUPPORTED;
    info->id = profile.id;
    info->slices = profile.slices;
    info->count = profile.count;
    info->multiprocessors = profile.multiprocessors;
    info->memory_mb = profile.memory_mb;
    info->ofas = info->jpegs = profile.ofas;
    snprintf(info->name, sizeof info->name, "MIG %s", profile.name);
    return SUCCESS;
}

/* The first version lacks the version and the name. */
int nvmlDeviceGetGpuInstanceProfileInfo(void *handle, unsigned index, GpuInstanceProfileInfoV1 *info) {
    BEGIN_ON(handle, "%d %u", device_of(handle), index)
    Profile profile;
    if (index >= PROFILES) return INVALID_ARGUMENT;
    if (!profile_by(device_of(handle), 0, index, &profile)) return NOT_SUPPORTED;
    *info = (GpuInstanceProfileInfoV1){
        .id = profile.id, .slices = profile.slices, .count = profile.count,
        .multiprocessors = profile.multiprocessors, .jpegs = profile.ofas, .ofas = profile.ofas,
        .memory_mb = profile.memory_mb};
    return SUCCESS;
}

int nvmlDeviceGetGpuInstancePossiblePlacements_v2(void *handle, unsigned id, Placement *into,
                                                  unsigned *count) {
    BEGIN_ON(handle, "%d %u", device_of(handle), id)
    Profile profile;
    int code = may_manage(handle);
    if (code != SUCCESS) return code;
    if (!profile_by(device_of(handle), 1, id, &profile)) return INVALID_ARGUMENT;
    int number = placements(device_of(handle), id, into, into ? *count : 0);
    if (into && number > (int)*count) return INSUFFICIENT_SIZE;
    *count = number;
    return SUCCESS;
}

int nvmlDeviceGetGpuInstancePossiblePlacements(void *handle, unsigned id, Placement *into,
                                               unsigned *count) {
    BEGIN_ON(handle, "%d %u", device_of(handle), id)
    Profile profile;
    int code = may_manage(handle);
    if (code != SUCCESS) return code;
    if (!profile_by(device_of(handle), 1, id, &profile)) return INVALID_ARGUMENT;
    int number = placements(device_of(handle), id, into, into ? *count : 0);
    if (into && number > (int)*count) return INSUFFICIENT_SIZE;
    *count = number;
    return SUCCESS;
}

/* Where an instance of this profile can be created now; false if nowhere. */
static int free_place(State *state, int gpu, const Profile *profile, const Placement *wanted,
                      Placement *found) {
    Placement possible[MOST];
    int number = placements(gpu, profile->id, possible, MOST);
    int slices = profile->slices, ofas = profile->ofas, same = 0, most_ofas = 0;
    for (int index = 0; index < PROFILES; index++) {
        Profile one;
        if (profile_by(gpu, 0, index, &one) && one.ofas > most_ofas) most_ofas = one.ofas;
    }
    for (int i = 0; i < state->gi_count; i++) {
        Profile one;
        if (state->gis[i].gpu != gpu || !profile_by(gpu, 1, state->gis[i].profile, &one)) continue;
        slices += one.slices;
        ofas += one.ofas;
        same += one.id == profile->id;
    }
    if (slices > slices_of(gpu) || ofas > most_ofas || same >= profile->count) return 0;
    for (int p = 0; p < number; p++) {
        int free = !wanted || (wanted->start == possible[p].start && wanted->size == possible[p].size);
        for (int i = 0; i < state->gi_count; i++) {
            Gi *gi = &state->gis[i];
            if (gi->gpu == gpu && (int)possible[p].start < gi->start + gi->size &&
                gi->start < (int)(possible[p].start + possible[p].size))
                free = 0;
        }
        if (free) {
            *found = possible[p];
            return 1;
        }
    }
    return 0;
}

int nvmlDeviceGetGpuInstanceRemainingCapacity(void *handle, unsigned id, unsigned *count) {
    BEGIN_ON(handle, "%d %u", device_of(handle), id)
    State *state = load();
    Profile profile;
    Placement found;
    int code = may_manage(handle);
    if (code != SUCCESS) return code;
    if (!profile_by(device_of(handle), 1, id, &profile)) return INVALID_ARGUMENT;
    for (*count = 0; free_place(state, device_of(handle), &profile, NULL, &found); ++*count)
        add_gi(state, device_of(handle), id, found);
    return SUCCESS;
}

static int create_gi(void *handle, unsigned id, const Placement *wanted, void **instance) {
    Profile profile;
    Placement found;
    int code = may_manage(handle);
    if (code != SUCCESS) return code;
    if (!mig_on(device_of(handle))) return NOT_SUPPORTED;
    if (!profile_by(device_of(handle), 1, id, &profile)) return INVALID_ARGUMENT;
    int lock = locked();
    State *state = load();
    if (free_place(state, device_of(handle), &profile, wanted, &found)) {
        Gi *gi = add_gi(state, device_of(handle), id, found);
        *instance = handle_of(GPU_INSTANCE, gi->gpu, gi->id, 0);
        save(state);
    } else
        code = INSUFFICIENT_RESOURCES;
    close(lock);
    return code;
}

int nvmlDeviceCreateGpuInstance(void *handle, unsigned id, void **instance) {
    BEGIN_ON(handle, "%d %u", device_of(handle), id)
    int code = create_gi(handle, id, NULL, instance);
    if (code != SUCCESS) return code;
    END
}

int nvmlDeviceCreateGpuInstanceWithPlacement(void *handle, unsigned id, const Placement *where,
                                             void **instance) {
    BEGIN_ON(handle, "%d %u %u:%u", device_of(handle), id, where->start, where->size)
    int code = create_gi(handle, id, where, instance);
    if (code != SUCCESS) return code;
    END
}

int nvmlGpuInstanceDestroy(void *handle) {
    BEGIN_ON(handle, "%d %d", device_of(handle), gi_of(handle))
    int code = may_manage(handle);
    if (code != SUCCESS) return code;
    int lock = locked();
    State *state = load();
    Gi *gi = find_gi(state, device_of(handle), gi_of(handle));
    if (!gi) code = NOT_FOUND;
    for (int i = 0; gi && i < state->ci_count; i++)
        if (state->cis[i].gpu == gi->gpu && state->cis[i].gi == gi->id) code = IN_USE;
    if (code == SUCCESS) {
        *gi = state->gis[--state->gi_count];
        save(state);
    }
    close(lock);
    if (code != SUCCESS) return code;
    END
}

int nvmlDeviceGetGpuInstances(void *handle, unsigned profile, void **instances, unsigned *count) {
    BEGIN_ON(handle, "%d %u", device_of(handle), profile)
    State *state = load();
    int code = may_manage(handle);
    if (code != SUCCESS) return code;
    *count = 0;
    for (int i = 0; i < state->gi_count; i++)
        if (state->gis[i].gpu == device_of(handle) && state->gis[i].profile == (int)profile)
            instances[(*count)++] = handle_of(GPU_INSTANCE, device_of(handle), state->gis[i].id, 0);
    return SUCCESS;
}

int nvmlDeviceGetGpuInstanceById(void *handle, unsigned id, void **instance) {
    BEGIN_ON(handle, "%d %u", device_of(handle), id)
    int code = may_manage(handle);
    if (code != SUCCESS) return code;
    if (!find_gi(load(), device_of(handle), id)) return NOT_FOUND;
    *instance = handle_of(GPU_INSTANCE, device_of(handle), id, 0);
    return SUCCESS;
}

int nvmlGpuInstanceGetInfo(void *handle, GpuInstanceInfo *info) {
    BEGIN_ON(handle, "%d %d", device_of(handle), gi_of(handle))
    Gi *gi = find_gi(load(), device_of(handle), gi_of(handle));
    if (!gi) return NOT_FOUND;
    info->device = handle_of(0, gi->gpu, 0, 0);
    info->id = gi->id;
    info->profile = gi->profile;
    info->placement = (Placement){gi->start, gi->size};
    return SUCCESS;
}

/* NVML's indices of compute instance profiles are their ids here, as with the real driver. */
static int slices_of_compute_profile(unsigned index) {
    static const int slices[] = {1, 2, 3, 4, 7, 8, 6};
    return index < sizeof slices / sizeof *slices ? slices[index] : 0;
}

static int compute_profile(void *handle, unsigned index, unsigned engine,
                           ComputeInstanceProfileInfo *info) {
    Profile profile;
    Gi *gi = find_gi(load(), device_of(handle), gi_of(handle));
    int slices = slices_of_compute_profile(index);
    if (info->version != COMPUTE_INSTANCE_PROFILE_INFO_V2) return VERSION_MISMATCH;
    if (!gi || engine != 0 || !profile_by(gi->gpu, 1, gi->profile, &profile)) return INVALID_ARGUMENT;
    if (!slices || !ci_offered(profile.slices, slices)) return NOT_SUPPORTED;
    info->id = index;
    info->slices = slices;
    info->count = profile.slices / slices;
    info->multiprocessors = profile.multiprocessors * slices / profile.slices;
    if (slices < profile.slices)
        snprintf(info->name, sizeof info->name, "MIG %dc.%s", slices, profile.name);
    else
        snprintf(info->name, sizeof info->name, "MIG %s", profile.name);
    return SUCCESS;
}

int nvmlGpuInstanceGetComputeInstanceProfileInfoV(void *handle, unsigned index, unsigned engine,
                                                  ComputeInstanceProfileInfo *info) {
    BEGIN_ON(handle, "%d %d %u %u %x", device_of(handle), gi_of(handle), index, engine, info->version)
    return compute_profile(handle, index, engine, info);
}

/* The first version lacks the version and the name. */
int nvmlGpuInstanceGetComputeInstanceProfileInfo(void *handle, unsigned index, unsigned engine,
                                                 unsigned *info) {
    ComputeInstanceProfileInfo all = {.version = COMPUTE_INSTANCE_PROFILE_INFO_V2};
    BEGIN_ON(handle, "%d %d %u %u", device_of(handle), gi_of(handle), index, engine)
    int code = compute_profile(handle, index, engine, &all);
    if (code == SUCCESS) memcpy(info, &all.id, 9 * sizeof(unsigned));
    return code;
}

static int create_ci(void *handle, unsigned id, const Placement *wanted, void **instance) {
    Profile profile;
    int code = may_manage(handle), slices = slices_of_compute_profile(id);
    if (code != SUCCESS) return code;
    int lock = locked();
    State *state = load();
    Gi *gi = find_gi(state, device_of(handle), gi_of(handle));
    if (!gi || !profile_by(gi->gpu, 1, gi->profile, &profile) || !slices ||
        !ci_offered(profile.slices, slices))
        code = INVALID_ARGUMENT;
    else {
        int start = wanted ? (int)wanted->start : 0, last = wanted ? start : profile.slices;
        while (start <= last && !ci_fits(state, gi, profile.slices, slices, start)) start++;
        if (start > last)
            code = INSUFFICIENT_RESOURCES;
        else {
            add_ci(state, gi, slices, start);
            Ci *ci = &state->cis[state->ci_count - 1];
            *instance = handle_of(COMPUTE_INSTANCE, ci->gpu, ci->gi, ci->id);
            save(state);
        }
    }
    close(lock);
    return code;
}

int nvmlGpuInstanceCreateComputeInstance(void *handle, unsigned id, void **instance) {
    BEGIN_ON(handle, "%d %d %u", device_of(handle), gi_of(handle), id)
    int code = create_ci(handle, id, NULL, instance);
    if (code != SUCCESS) return code;
    END
}

int nvmlGpuInstanceCreateComputeInstanceWithPlacement(void *handle, unsigned id,
                                                      const Placement *where, void **instance) {
    BEGIN_ON(handle, "%d %d %u %u:%u", device_of(handle), gi_of(handle), id, where->start, where->size)
    int code = create_ci(handle, id, where, instance);
    if (code != SUCCESS) return code;
    END
}

int nvmlGpuInstanceGetComputeInstances(void *handle, unsigned profile, void **instances,
                                       unsigned *count) {
    BEGIN_ON(handle, "%d %d %u", device_of(handle), gi_of(handle), profile)
    State *state = load();
    int code = may_manage(handle);
    if (code != SUCCESS) return code;
    *count = 0;
    for (int i = 0; i < state->ci_count; i++) {
        Ci *ci = &state->cis[i];
        if (ci->gpu == device_of(handle) && ci->gi == gi_of(handle) &&
            ci->slices == slices_of_compute_profile(profile))
            instances[(*count)++] = handle_of(COMPUTE_INSTANCE, ci->gpu, ci->gi, ci->id);
    }
    return SUCCESS;
}

int nvmlGpuInstanceGetComputeInstanceById(void *handle, unsigned id, void **instance) {
    BEGIN_ON(handle, "%d %d %u", device_of(handle), gi_of(handle), id)
    int code = may_manage(handle);
    if (code != SUCCESS) return code;
    if (!find_ci(load(), device_of(handle), gi_of(handle), id)) return NOT_FOUND;
    *instance = handle_of(COMPUTE_INSTANCE, device_of(handle), gi_of(handle), id);
    return SUCCESS;
}

static int compute_info(void *handle, ComputeInstanceInfo *info) {
    Ci *ci = find_ci(load(), device_of(handle), gi_of(handle), ci_of(handle));
    if (!ci) return NOT_FOUND;
    info->device = handle_of(0, ci->gpu, 0, 0);
    info->gpu_instance = handle_of(GPU_INSTANCE, ci->gpu, ci->gi, 0);
    info->id = ci->id;
    for (info->profile = 0; slices_of_compute_profile(info->profile) != ci->slices; info->profile++)
        continue;
    info->placement = (Placement){ci->start, ci->slices};
    return SUCCESS;
}

int nvmlComputeInstanceGetInfo_v2(void *handle, ComputeInstanceInfo *info) {
    BEGIN_ON(handle, "%d %d %d", device_of(handle), gi_of(handle), ci_of(handle))
    return compute_info(handle, info);
}

/* The first version ends before the placement. */
int nvmlComputeInstanceGetInfo(void *handle, void *info) {
    BEGIN_ON(handle, "%d %d %d", device_of(handle), gi_of(handle), ci_of(handle))
    ComputeInstanceInfo all;
    int code = compute_info(handle, &all);
    if (code == SUCCESS) memcpy(info, &all, sizeof all - sizeof all.placement);
    return code;
}

int nvmlComputeInstanceDestroy(void *handle) {
    BEGIN_ON(handle, "%d %d %d", device_of(handle), gi_of(handle), ci_of(handle))
    int code = may_manage(handle);
    if (code != SUCCESS) return code;
    int lock = locked();
    State *state = load();
    Ci *ci = find_ci(state, device_of(handle), gi_of(handle), ci_of(handle));
    if (!ci)
        code = NOT_FOUND;
    else if (in_use(ci->gpu, ci->gi, ci->id))
        code = IN_USE;
    else {
        *ci = state->cis[--state->ci_count];
        save(state);
    }
    close(lock);
    if (code != SUCCESS) return code;
    END
}

#include "fake_nvml_smi.c"
#include "fake_nvml_gpm.c"
