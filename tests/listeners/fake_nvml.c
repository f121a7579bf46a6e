/* A stand-in for NVIDIA's libnvidia-ml.so.1: the functions that the smi listener calls, with the
 * layouts of nvml.h, so that pynvml's own structures are put to the test.
 *
 * $FAKE_NVML names a file that is read on every call, so that a test can change the "hardware"
 * under way. A line is a key and numbers:
 *
 *     count N                  number of GPUs
 *     fail FUNCTION CODE       the function returns this error
 *     crash FUNCTION           the function takes the process down
 *     gpu I UTIL TOTAL RESERVED USED POWER_MW ENERGY_MJ TEMPERATURE SM_MHZ MEMORY_MHZ
 *     process I PID BYTES      a compute process on GPU I; BYTES "n/a" if not known
 *     mps I PID BYTES          likewise, a client of MPS
 *
 * $FAKE_NVML_LOG gets a line per call: the function's name and what it was asked.
 */
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { SUCCESS = 0, UNINITIALIZED = 1, INVALID_ARGUMENT = 2, NOT_FOUND = 6, INSUFFICIENT_SIZE = 7 };
enum { VERSION_MISMATCH = 25 };
#define MEMORY_V2 0x02000028u
#define NOT_AVAILABLE (~0ull)

typedef struct { unsigned gpu, memory; } Utilization;
typedef struct { unsigned version; unsigned long long total, reserved, free, used; } Memory;
typedef struct { unsigned pid; unsigned long long used; unsigned gi, ci; } Process;

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

/* What a function is to return before it does anything. */
static int fate(const char *function) {
    FILE *file = config();
    char line[256], name[128];
    int code, result = SUCCESS;
    while (file && fgets(line, sizeof line, file)) {
        if (sscanf(line, "fail %127s %d", name, &code) == 2 && !strcmp(name, function)) result = code;
        if (sscanf(line, "crash %127s", name) == 1 && !strcmp(name, function)) abort();
    }
    if (file) fclose(file);
    if (result == SUCCESS && !initialised && strcmp(function, "nvmlInitWithFlags"))
        result = UNINITIALIZED;
    return result;
}

#define BEGIN(format, ...)                                      \
    note("%s " format, __func__, __VA_ARGS__);                  \
    { int code = fate(__func__); if (code != SUCCESS) return code; }

static int device_of(void *handle) { return (int)(long)handle - 1; }

static unsigned gpu_count(void) {
    FILE *file = config();
    char line[256];
    unsigned count = 0;
    while (file && fgets(line, sizeof line, file)) sscanf(line, "count %u", &count);
    if (file) fclose(file);
    return count;
}

/* One of the nine numbers of a GPU's line. */
static unsigned long long value(void *handle, int which) {
    FILE *file = config();
    char line[256];
    int index;
    unsigned long long v[9] = {0}, found = 0;
    while (file && fgets(line, sizeof line, file))
        if (sscanf(line, "gpu %d %llu %llu %llu %llu %llu %llu %llu %llu %llu", &index, v, v + 1,
                   v + 2, v + 3, v + 4, v + 5, v + 6, v + 7, v + 8) == 10 &&
            index == device_of(handle))
            found = v[which];
    if (file) fclose(file);
    return found;
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
    *handle = (void *)(long)(index + 1);
    return SUCCESS;
}

int nvmlDeviceGetHandleByUUID(const char *uuid, void **handle) {
    BEGIN("%s", uuid)
    unsigned index;
    if (sscanf(uuid, "GPU-fake-%u", &index) != 1 || index >= gpu_count()) return NOT_FOUND;
    *handle = (void *)(long)(index + 1);
    return SUCCESS;
}

int nvmlDeviceGetIndex(void *handle, unsigned *index) {
    BEGIN("%d", device_of(handle))
    *index = device_of(handle);
    return SUCCESS;
}

int nvmlDeviceGetUtilizationRates(void *handle, Utilization *rates) {
    BEGIN("%d", device_of(handle))
    rates->gpu = value(handle, 0);
    rates->memory = 1;
    return SUCCESS;
}

int nvmlDeviceGetMemoryInfo_v2(void *handle, Memory *memory) {
    BEGIN("%d %x", device_of(handle), memory->version)
    if (memory->version != MEMORY_V2) return VERSION_MISMATCH;
    memory->total = value(handle, 1);
    memory->reserved = value(handle, 2);
    memory->used = value(handle, 3);
    memory->free = memory->total - memory->reserved - memory->used;
    return SUCCESS;
}

int nvmlDeviceGetPowerUsage(void *handle, unsigned *milliwatts) {
    BEGIN("%d", device_of(handle))
    *milliwatts = value(handle, 4);
    return SUCCESS;
}

int nvmlDeviceGetTotalEnergyConsumption(void *handle, unsigned long long *millijoules) {
    BEGIN("%d", device_of(handle))
    *millijoules = value(handle, 5);
    return SUCCESS;
}

int nvmlDeviceGetTemperature(void *handle, int sensor, unsigned *degrees) {
    BEGIN("%d %d", device_of(handle), sensor)
    if (sensor != 0) return INVALID_ARGUMENT;
    *degrees = value(handle, 6);
    return SUCCESS;
}

int nvmlDeviceGetClockInfo(void *handle, int clock, unsigned *megahertz) {
    BEGIN("%d %d", device_of(handle), clock)
    if (clock != 1 && clock != 2) return INVALID_ARGUMENT; /* 1 SM, 2 memory */
    *megahertz = value(handle, clock == 1 ? 7 : 8);
    return SUCCESS;
}

static int processes(const char *kind, void *handle, unsigned *count, Process *found) {
    FILE *file = config();
    char line[256], name[32], bytes[64];
    int index;
    unsigned pid, number = 0, room = found ? *count : 0;
    while (file && fgets(line, sizeof line, file)) {
        if (sscanf(line, "%31s %d %u %63s", name, &index, &pid, bytes) != 4) continue;
        if (strcmp(name, kind) || index != device_of(handle)) continue;
        if (number < room) {
            found[number].pid = pid;
            found[number].used = strcmp(bytes, "n/a") ? strtoull(bytes, NULL, 10) : NOT_AVAILABLE;
            found[number].gi = found[number].ci = ~0u;
        }
        number++;
    }
    if (file) fclose(file);
    *count = number;
    return number > room ? INSUFFICIENT_SIZE : SUCCESS;
}

int nvmlDeviceGetComputeRunningProcesses_v3(void *handle, unsigned *count, Process *found) {
    BEGIN("%d %u", device_of(handle), *count)
    return processes("process", handle, count, found);
}

int nvmlDeviceGetMPSComputeRunningProcesses_v3(void *handle, unsigned *count, Process *found) {
    BEGIN("%d %u", device_of(handle), *count)
    return processes("mps", handle, count, found);
}
