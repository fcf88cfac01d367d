/* The fake's devices: names, handles, instances of split GPUs. */
#include "fake.h"
#include <stdio.h>
#include <string.h>

int fake_instance(void *device) {
    char *at = device, *first = &fake_instances[0][0];
    return at >= first && at < first + MOST * MOST_MIG ? (int)((at - first) % MOST_MIG) : -1;
}

int fake_parent(void *device) {
    char *at = device, *first = &fake_instances[0][0];
    int gpu = -1;
    if (at >= fake_gpus && at < fake_gpus + MOST) gpu = (int)(at - fake_gpus);
    else if (fake_instance(device) >= 0) gpu = (int)((at - first) / MOST_MIG);
    return gpu < (int)fake_count ? gpu : -1;
}

result nvmlSystemGetDriverVersion(char *text, unsigned int size) {
    ENTER_SYSTEM();
    snprintf(text, size, "570.00");
    return OK;
}

result nvmlSystemGetCudaDriverVersion_v2(int *version) { ENTER_SYSTEM(); *version = 12080; return OK; }
result nvmlDeviceGetCount_v2(unsigned int *number) { ENTER_SYSTEM(); *number = fake_count; return OK; }

result nvmlDeviceGetHandleByIndex_v2(unsigned int index, void **device) {
    ENTER_SYSTEM();
    if (index >= fake_count) return INVALID;
    *device = fake_gpus + index;
    ENTER(*device);
    return OK;
}

result nvmlDeviceGetIndex(void *device, unsigned int *index) {
    ENTER(device);
    *index = (unsigned int)(fake_instance(device) >= 0 ? fake_instance(device) : fake_parent(device));
    return OK;
}

static void uuid_of(void *device, char *text, unsigned int size) {
    int instance = fake_instance(device), gpu = fake_parent(device);
    if (instance < 0) snprintf(text, size, "GPU-fa4e0000-0000-0000-0000-%012x", gpu);
    else snprintf(text, size, "MIG-fa4e0000-0000-0000-%04x-%012x", instance + 1, gpu);
}

result nvmlDeviceGetUUID(void *device, char *text, unsigned int size) {
    ENTER(device);
    uuid_of(device, text, size);
    return OK;
}

result nvmlDeviceGetHandleByUUID(const char *uuid, void **device) {
    char text[96];
    unsigned int gpu, instance;
    ENTER_SYSTEM();
    for (gpu = 0; gpu < fake_count; gpu++) {
        *device = fake_gpus + gpu;
        uuid_of(*device, text, sizeof text);
        if (!strcmp(text, uuid)) { ENTER(*device); return OK; }
        for (instance = 0; instance < fake_migs[gpu]; instance++) {
            *device = &fake_instances[gpu][instance];
            uuid_of(*device, text, sizeof text);
            if (!strcmp(text, uuid)) { ENTER(*device); return OK; }
        }
    }
    return NOT_FOUND;
}

result nvmlDeviceGetName(void *device, char *text, unsigned int size) {
    ENTER(device);
    snprintf(text, size, fake_instance(device) < 0 ? "%s" : "%s MIG 1g.10gb", fake_name);
    return OK;
}

result nvmlDeviceGetMigMode(void *device, unsigned int *current, unsigned int *pending) {
    ENTER_WHOLE(device);
    *current = *pending = fake_migs[fake_parent(device)] > 0;
    return OK;
}

result nvmlDeviceGetMaxMigDeviceCount(void *device, unsigned int *number) {
    ENTER_WHOLE(device);
    *number = PARTS;
    return OK;
}

result nvmlDeviceGetMigDeviceHandleByIndex(void *device, unsigned int index, void **instance) {
    ENTER_WHOLE(device);
    if (index >= fake_migs[fake_parent(device)]) return NOT_FOUND;
    *instance = &fake_instances[fake_parent(device)][index];
    return OK;
}

result nvmlDeviceGetDeviceHandleFromMigDeviceHandle(void *instance, void **device) {
    ENTER(instance);
    if (fake_instance(instance) < 0) return INVALID;
    *device = fake_gpus + fake_parent(instance);
    return OK;
}

result nvmlDeviceIsMigDeviceHandle(void *device, unsigned int *is) {
    ENTER(device);
    *is = fake_instance(device) >= 0;
    return OK;
}
