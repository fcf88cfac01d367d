/* A fake libnvidia-ml.so.1: as many GPUs as one asks for, under the real pynvml.
 *
 * Environment (read at nvmlInit, so that a new process sees a change):
 *   AMLTRAIN_FAKE_NVML_GPUS       number of GPUs, default 2, at most 64
 *   AMLTRAIN_FAKE_NVML_PROCESSES  file of lines "<gpu index> <pid> <bytes>": compute processes
 *   AMLTRAIN_FAKE_NVML_UNSUPPORTED comma list of: name, memory, processes (answered NOT_SUPPORTED)
 *   AMLTRAIN_FAKE_NVML_BROKEN     non-empty: nvmlInit answers DRIVER_NOT_LOADED
 *   AMLTRAIN_FAKE_NVML_HANG       seconds that nvmlInit sleeps
 *   AMLTRAIN_FAKE_NVML_LOG        file to which every nvmlInit appends its pid
 *
 * Types and numbers follow the published NVML API reference; only what our agent
 * calls is here. Versioned symbols are those that pynvml binds.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

typedef int result;
enum { OK = 0, INVALID = 2, NOT_SUPPORTED = 3, INSUFFICIENT_SIZE = 7, DRIVER_NOT_LOADED = 9 };

typedef struct { unsigned long long total, free, used; } memory_info;
typedef struct { unsigned int version; unsigned long long total, reserved, free, used; } memory_info_v2;
typedef struct {
    unsigned int pid;
    unsigned long long used;
    unsigned int gpu_instance, compute_instance;
} process_info;

#define MOST 64
#define TOTAL (80ULL << 30)
#define USED (1ULL << 30)

static char devices[MOST];
static unsigned int count;

static unsigned int wanted(void) {
    const char *text = getenv("AMLTRAIN_FAKE_NVML_GPUS");
    unsigned int number = text ? (unsigned int)atoi(text) : 2;
    return number > MOST ? MOST : number;
}

static int unsupported(const char *what) {
    const char *text = getenv("AMLTRAIN_FAKE_NVML_UNSUPPORTED");
    return text && strstr(text, what) != NULL;
}

static int index_of(void *device) {
    char *at = device;
    return at >= devices && at < devices + count ? (int)(at - devices) : -1;
}

result nvmlInit_v2(void) {
    const char *hang = getenv("AMLTRAIN_FAKE_NVML_HANG"), *log = getenv("AMLTRAIN_FAKE_NVML_LOG");
    const char *broken = getenv("AMLTRAIN_FAKE_NVML_BROKEN");
    if (log) {
        FILE *file = fopen(log, "a");
        if (file) {
            fprintf(file, "%d\n", getpid());
            fclose(file);
        }
    }
    if (hang) sleep((unsigned int)atoi(hang));
    if (broken && *broken) return DRIVER_NOT_LOADED;
    count = wanted();
    return OK;
}
result nvmlInitWithFlags(unsigned int flags) { (void)flags; return nvmlInit_v2(); }
result nvmlShutdown(void) { return OK; }

const char *nvmlErrorString(result code) {
    switch (code) {
    case OK: return "Success";
    case INVALID: return "Invalid Argument";
    case NOT_SUPPORTED: return "Not Supported";
    case INSUFFICIENT_SIZE: return "Insufficient Size";
    case DRIVER_NOT_LOADED: return "Driver Not Loaded";
    default: return "Unknown Error";
    }
}

result nvmlSystemGetDriverVersion(char *text, unsigned int size) { snprintf(text, size, "570.00"); return OK; }
result nvmlDeviceGetCount_v2(unsigned int *number) { *number = count; return OK; }

result nvmlDeviceGetHandleByIndex_v2(unsigned int index, void **device) {
    if (index >= count) return INVALID;
    *device = devices + index;
    return OK;
}

result nvmlDeviceGetIndex(void *device, unsigned int *index) {
    int at = index_of(device);
    if (at < 0) return INVALID;
    *index = (unsigned int)at;
    return OK;
}

result nvmlDeviceGetUUID(void *device, char *text, unsigned int size) {
    int at = index_of(device);
    if (at < 0) return INVALID;
    snprintf(text, size, "GPU-fa4e0000-0000-0000-0000-%012x", at);
    return OK;
}

result nvmlDeviceGetName(void *device, char *text, unsigned int size) {
    if (index_of(device) < 0) return INVALID;
    if (unsupported("name")) return NOT_SUPPORTED;
    snprintf(text, size, "Fake H100 80GB");
    return OK;
}

result nvmlDeviceGetMemoryInfo(void *device, memory_info *memory) {
    if (index_of(device) < 0) return INVALID;
    if (unsupported("memory")) return NOT_SUPPORTED;
    memory->total = TOTAL;
    memory->used = USED;
    memory->free = TOTAL - USED;
    return OK;
}

result nvmlDeviceGetMemoryInfo_v2(void *device, memory_info_v2 *memory) {
    if (index_of(device) < 0) return INVALID;
    if (unsupported("memory")) return NOT_SUPPORTED;
    memory->total = TOTAL;
    memory->reserved = 0;
    memory->used = USED;
    memory->free = TOTAL - USED;
    return OK;
}

result nvmlDeviceGetComputeRunningProcesses_v3(void *device, unsigned int *number, process_info *found) {
    int at = index_of(device), gpu;
    unsigned int pid, seen = 0;
    unsigned long long bytes;
    const char *path = getenv("AMLTRAIN_FAKE_NVML_PROCESSES");
    FILE *file;
    if (at < 0) return INVALID;
    if (unsupported("processes")) return NOT_SUPPORTED;
    file = path ? fopen(path, "r") : NULL;
    if (file) {
        while (fscanf(file, "%d %u %llu", &gpu, &pid, &bytes) == 3) {
            if (gpu != at) continue;
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
