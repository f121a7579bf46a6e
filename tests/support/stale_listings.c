/* A shared folder that shows an old state: listings below $STALE_FOLDER, of a machine that has cached
 * them. A folder whose old listing lies in $STALE_CACHE, under its path with % for /, is listed as it
 * is there.
 *
 * Preloaded (LD_PRELOAD) by the processes of one machine. The test makes and removes the old
 * listings: what a network file system does by time. Files are opened by name as they are. */
#define _GNU_SOURCE
#include <dirent.h>
#include <dlfcn.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

DIR *opendir(const char *path)
{
    DIR *(*real)(const char *) = (DIR * (*)(const char *)) dlsym(RTLD_NEXT, "opendir");
    const char *folder = getenv("STALE_FOLDER"), *cache = getenv("STALE_CACHE");
    char old[PATH_MAX], *at;
    DIR *listed;

    if (folder != NULL && cache != NULL && strncmp(path, folder, strlen(folder)) == 0) {
        snprintf(old, sizeof old, "%s/%s", cache, path + strlen(folder));
        for (at = old + strlen(cache) + 1; *at != '\0'; at++)
            if (*at == '/')
                *at = '%';
        if ((listed = real(old)) != NULL)
            return listed;
    }
    return real(path);
}
