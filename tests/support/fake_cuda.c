/* A stand-in for libcuda.so.1: what a process asks to learn which devices CUDA offers it.
 *
 * $FAKE_CUDA names a file: a line per device in CUDA's order, its UUID as 32 hexadecimal digits,
 * and that of the MIG device that it is, if it is one; or "fail CODE" for cuInit. Without the file,
 * the driver does not work. CUDA_VISIBLE_DEVICES chooses among the devices by number, or one GPU
 * by (the beginning of) its UUID; naming one twice leaves none.
 */
#include <ctype.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { NO_DEVICE = 100, UNKNOWN = 999, MOST = 16 };
static char gpus[MOST][40], own[MOST][40];
static int count;

int cuInit(unsigned flags) {
    const char *path = getenv("FAKE_CUDA"), *visible = getenv("CUDA_VISIBLE_DEVICES");
    FILE *file = path && !flags ? fopen(path, "r") : NULL;
    char line[256], all[MOST][2][40];
    int code = file ? 0 : UNKNOWN, found = 0, number, used;
    count = 0;
    while (file && fgets(line, sizeof line, file)) {
        if (sscanf(line, "fail %d", &code) == 1) break;
        int read = sscanf(line, "%32s %32s", all[found][0], all[found][1]);
        if (read == 1) strcpy(all[found][1], all[found][0]);
        found += read > 0;
    }
    if (file) fclose(file);
    for (int i = 0; i < found && !visible; i++)
        strcpy(gpus[count], all[i][0]), strcpy(own[count++], all[i][1]);
    for (; visible && !strncmp(visible, "GPU-", 4); visible += strcspn(visible, ",")) {
        char hex[40] = "";
        for (visible += 4; isxdigit(*visible) || *visible == '-'; visible++)
            if (*visible != '-') strncat(hex, visible, 1);
        for (int i = 0; i < found; i++)
            if (!strncmp(all[i][0], hex, strlen(hex)))
                strcpy(gpus[count], all[i][0]), strcpy(own[count++], all[i][1]);
    }
    for (; visible && sscanf(visible, "%d%n", &number, &used) == 1 && number < found;
         visible += used + (visible[used] == ','))
        strcpy(gpus[count], all[number][0]), strcpy(own[count++], all[number][1]);
    for (int i = 0; i < count; i++)
        for (int j = 0; visible && j < i; j++)
            if (!strcmp(own[i], own[j])) count = 0;
    return code ? code : count ? 0 : NO_DEVICE;
}

int cuDeviceGetCount(int *number) {
    *number = count;
    return 0;
}

int cuDeviceGet(int *device, int ordinal) {
    *device = ordinal;
    return 0;
}

static int bytes(const char *digits, unsigned char *uuid) {
    for (int i = 0; i < 16; i++) sscanf(digits + 2 * i, "%2hhx", &uuid[i]);
    return 0;
}

int cuDeviceGetUuid(unsigned char *uuid, int device) { return bytes(gpus[device], uuid); }
int cuDeviceGetUuid_v2(unsigned char *uuid, int device) { return bytes(own[device], uuid); }
