/* GPM, as part of the fake NVML: fake_nvml.c includes this file at its end.
 *
 * Lines of the configuration:
 *
 *     gpm I                    GPU I has GPM
 *     gpm_value I GI ID VALUE [RETURN]
 *                              what the hardware's counters say of metric ID from now on, of GPU I
 *                              (GI "-") or of a GPU instance of it; RETURN is the metric's own error
 *
 * A sample keeps the values of when it was taken. Two samples are compared as the driver does:
 * of one place, the older first, more than 100 ms apart; the newer one's values are the answer.
 * What nvmlGpmSampleFree does not get back is told by "gpm_leak N" in the log when the process
 * ends; giving back what is not there takes the process down.
 */
#include <time.h>

enum { GPM_VERSION = 1, GPM_METRICS = 512, GPM_WINDOW_MS = 100, GPM_MAGIC = 0x67706d31 };
typedef struct {
    unsigned id;
    int result;
    double value;
    struct { char *short_name, *long_name, *unit; } info;
} GpmMetric;
typedef struct { unsigned version, count; void *first, *second; GpmMetric metrics[]; } GpmMetricsGet;
typedef struct { unsigned version, supported; } GpmSupport;
typedef struct {
    int magic, gpu, gi;
    long long taken_ns; /* 0: not yet */
    double values[GPM_METRICS];
    int results[GPM_METRICS];
} GpmSample;

_Static_assert(sizeof(GpmMetric) == 40, "nvmlGpmMetric_t");
_Static_assert(sizeof(GpmMetricsGet) == 24, "nvmlGpmMetricsGet_t without its metrics");

static int gpm_alive = 0;

static long long gpm_now_ns(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return now.tv_sec * 1000000000ll + now.tv_nsec;
}

static int has_gpm(int gpu) {
    FILE *file = config();
    char line[256];
    int index, found = 0;
    while (file && fgets(line, sizeof line, file))
        found |= sscanf(line, "gpm %d", &index) == 1 && index == gpu;
    if (file) fclose(file);
    return found;
}

static GpmSample *gpm_sample(void *pointer) {
    GpmSample *sample = pointer;
    if (!sample || sample->magic != GPM_MAGIC) abort();
    return sample;
}

int nvmlGpmQueryDeviceSupport(void *handle, GpmSupport *support) {
    BEGIN("%d %u", device_of(handle), support->version)
    if (support->version != GPM_VERSION) return VERSION_MISMATCH;
    support->supported = has_gpm(device_of(handle));
    return SUCCESS;
}

int nvmlGpmSampleAlloc(void **sample) {
    BEGIN("%d", gpm_alive + 1)
    GpmSample *made = calloc(1, sizeof *made);
    made->magic = GPM_MAGIC;
    gpm_alive++;
    *sample = made;
    return SUCCESS;
}

int nvmlGpmSampleFree(void *sample) {
    BEGIN("%d", gpm_alive - 1)
    gpm_sample(sample)->magic = 0;
    gpm_alive--;
    free(sample);
    return SUCCESS;
}

static int gpm_take(int gpu, int gi, GpmSample *sample) {
    FILE *file = config();
    char line[256], place[16];
    int index, result, number;
    unsigned id;
    double value;
    if (!has_gpm(gpu)) return NOT_SUPPORTED;
    sample->gpu = gpu;
    sample->gi = gi;
    sample->taken_ns = gpm_now_ns();
    for (int i = 0; i < GPM_METRICS; i++) sample->values[i] = 0, sample->results[i] = NOT_SUPPORTED;
    while (file && fgets(line, sizeof line, file)) {
        number = sscanf(line, "gpm_value %d %15s %u %lf %d", &index, place, &id, &value, &result);
        if (number < 4 || index != gpu || id >= GPM_METRICS) continue;
        if ((gi < 0) != !strcmp(place, "-") || (gi >= 0 && atoi(place) != gi)) continue;
        sample->values[id] = value;
        sample->results[id] = number == 5 ? result : SUCCESS;
    }
    if (file) fclose(file);
    return SUCCESS;
}

int nvmlGpmSampleGet(void *handle, void *sample) {
    BEGIN_ON(handle, "%d", device_of(handle))
    if (kind_of(handle)) return INVALID_ARGUMENT;
    return gpm_take(device_of(handle), -1, gpm_sample(sample));
}

int nvmlGpmMigSampleGet(void *handle, unsigned gi, void *sample) {
    BEGIN_ON(handle, "%d %u", device_of(handle), gi)
    if (kind_of(handle) || !mig_on(device_of(handle))) return INVALID_ARGUMENT;
    if (!find_gi(load(), device_of(handle), gi)) return NOT_FOUND;
    return gpm_take(device_of(handle), gi, gpm_sample(sample));
}

int nvmlGpmMetricsGet(GpmMetricsGet *request) {
    GpmSample *first = gpm_sample(request->first), *second = gpm_sample(request->second);
    long long apart_ms = (second->taken_ns - first->taken_ns) / 1000000;
    BEGIN("%d %d %u %lld", second->gpu, second->gi, request->count, apart_ms)
    if (request->version != GPM_VERSION) return VERSION_MISMATCH;
    if (!first->taken_ns || !second->taken_ns || apart_ms < GPM_WINDOW_MS) return INVALID_ARGUMENT;
    if (first->gpu != second->gpu || first->gi != second->gi) return INVALID_ARGUMENT;
    for (unsigned i = 0; i < request->count; i++) {
        GpmMetric *metric = &request->metrics[i];
        if (metric->id >= GPM_METRICS) return INVALID_ARGUMENT;
        metric->value = second->values[metric->id];
        metric->result = second->results[metric->id];
    }
    return SUCCESS;
}

__attribute__((destructor)) static void gpm_report(void) {
    if (gpm_alive) note("gpm_leak %d", gpm_alive);
}
