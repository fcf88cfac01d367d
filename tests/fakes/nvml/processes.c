/* The fake's compute processes, and what only other programs than ours ask (they are compared with us). */
#include "fake.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef struct {
    unsigned int pid;
    unsigned long long used;
    unsigned int gpu_instance, compute_instance;
} process_info;

#define ELSEWHERE 4200000u  /* above every pid that Linux gives */

static result list(void *device, unsigned int *number, process_info *found) {
    const char *path = getenv("AMLTRAIN_FAKE_NVML_PROCESSES"), *pids = getenv("AMLTRAIN_FAKE_NVML_PIDS");
    FILE *file = path && !(pids && !strcmp(pids, "empty")) ? fopen(path, "r") : NULL;
    int gpu, at = fake_parent(device);
    unsigned int pid, seen = 0;
    unsigned long long bytes;
    if (file) {
        while (fscanf(file, "%d %u %llu", &gpu, &pid, &bytes) == 3) {
            if (gpu != at) continue;
            if (pids && (!strcmp(pids, "host") || (!strcmp(pids, "mixed") && seen % 2))) pid += ELSEWHERE;
            if (found && seen < *number) {
                found[seen].pid = pid;
                found[seen].used = bytes;
                found[seen].gpu_instance = found[seen].compute_instance = 0xFFFFFFFFu;
            }
            seen++;
        }
        fclose(file);
    }
    if (seen > *number || (seen && !found)) {
        *number = seen;
        return INSUFFICIENT_SIZE;
    }
    *number = seen;
    return OK;
}

result nvmlDeviceGetComputeRunningProcesses_v3(void *device, unsigned int *number, process_info *found) {
    ENTER(device);
    return list(device, number, found);
}

/* Older drivers have only this name; the rows are the same. */
result nvmlDeviceGetComputeRunningProcesses_v2(void *device, unsigned int *number, process_info *found) {
    ENTER(device);
    return list(device, number, found);
}

result nvmlDeviceGetGraphicsRunningProcesses_v3(void *device, unsigned int *number, process_info *found) {
    (void)found;
    ENTER(device);
    *number = 0;
    return OK;
}

/* -- asked by others ------------------------------------------------------------ */

#define CONSTANT(function, value) \
    result function(void *device, unsigned int *into) { ENTER_WHOLE(device); *into = value; return OK; }

CONSTANT(nvmlDeviceGetFanSpeed, 30)
CONSTANT(nvmlDeviceGetPersistenceMode, 1)
CONSTANT(nvmlDeviceGetPerformanceState, 0)
CONSTANT(nvmlDeviceGetDisplayActive, 0)
CONSTANT(nvmlDeviceGetDisplayMode, 0)
CONSTANT(nvmlDeviceGetComputeMode, 0)
CONSTANT(nvmlDeviceGetMemoryBusWidth, 5120)
CONSTANT(nvmlDeviceGetNumGpuCores, 16896)

typedef struct { unsigned long long total, free, used; } bar1_info;
result nvmlDeviceGetBAR1MemoryInfo(void *device, bar1_info *memory) {
    ENTER_WHOLE(device);
    memory->total = TOTAL;
    memory->used = 1 << 20;
    memory->free = TOTAL - memory->used;
    return OK;
}

#define CODEC(function) \
    result function(void *device, unsigned int *percent, unsigned int *period) { \
        ENTER_WHOLE(device); *percent = 0; *period = 166000; return OK; }
CODEC(nvmlDeviceGetEncoderUtilization)
CODEC(nvmlDeviceGetDecoderUtilization)

result nvmlDeviceGetPcieThroughput(void *device, unsigned int counter, unsigned int *kilobytes) {
    ENTER_WHOLE(device);
    *kilobytes = 1000 + counter;
    return OK;
}

/* Of Windows only. */
result nvmlDeviceGetDriverModel(void *device, unsigned int *current, unsigned int *pending) {
    (void)current; (void)pending;
    ENTER_WHOLE(device);
    return NOT_SUPPORTED;
}

result nvmlDeviceGetEccMode(void *device, unsigned int *current, unsigned int *pending) {
    ENTER_WHOLE(device);
    *current = *pending = 1;
    return OK;
}

typedef struct {
    char legacy[16];
    unsigned int domain, bus, device, id, subsystem;
    char text[32];
} pci_info;
result nvmlDeviceGetPciInfo_v3(void *device, pci_info *pci) {
    ENTER_WHOLE(device);
    memset(pci, 0, sizeof *pci);
    pci->bus = (unsigned int)fake_parent(device);
    snprintf(pci->text, sizeof pci->text, "00000000:%02X:00.0", pci->bus);
    snprintf(pci->legacy, sizeof pci->legacy, "0000:%02X:00.0", pci->bus);
    return OK;
}

result nvmlDeviceGetMemoryErrorCounter(void *device, unsigned int kind, unsigned int counter, unsigned int place,
                                       unsigned long long *errors) {
    (void)kind; (void)counter; (void)place;
    ENTER_WHOLE(device);
    *errors = 0;
    return OK;
}

result nvmlDeviceGetCudaComputeCapability(void *device, int *major, int *minor) {
    ENTER(device);
    *major = 9;
    *minor = 0;
    return OK;
}
