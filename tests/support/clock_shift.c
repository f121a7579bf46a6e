/* A wall clock that a test sets: CLOCK_REALTIME plus the seconds in the file $CLOCK_SHIFT_FILE.
 *
 * Preloaded (LD_PRELOAD). The file is mapped, so that a change counts at once; it holds one double.
 * Monotonic clocks are left alone, as an administrator who sets the clock leaves them. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

static const volatile double *shift;
static int (*real_gettime)(clockid_t, struct timespec *);

__attribute__((constructor)) static void set_up(void)
{
    const char *path = getenv("CLOCK_SHIFT_FILE");
    int descriptor;
    void *mapped;

    real_gettime = (int (*)(clockid_t, struct timespec *))dlsym(RTLD_NEXT, "clock_gettime");
    if (path == NULL || (descriptor = open(path, O_RDONLY | O_CLOEXEC)) < 0)
        return;
    mapped = mmap(NULL, sizeof(double), PROT_READ, MAP_SHARED, descriptor, 0);
    close(descriptor);
    if (mapped != MAP_FAILED)
        shift = mapped;
}

int clock_gettime(clockid_t clock, struct timespec *now)
{
    int result;

    if (real_gettime == NULL)
        set_up();
    result = real_gettime(clock, now);
    if (result == 0 && shift != NULL
        && (clock == CLOCK_REALTIME || clock == CLOCK_REALTIME_COARSE))
        now->tv_sec += (time_t)*shift;
    return result;
}

int gettimeofday(struct timeval *restrict now, void *restrict zone)
{
    struct timespec exact;

    (void)zone;
    if (clock_gettime(CLOCK_REALTIME, &exact) != 0)
        return -1;
    now->tv_sec = exact.tv_sec;
    now->tv_usec = exact.tv_nsec / 1000;
    return 0;
}

time_t time(time_t *where)
{
    struct timespec exact;

    clock_gettime(CLOCK_REALTIME, &exact);
    if (where != NULL)
        *where = exact.tv_sec;
    return exact.tv_sec;
}
