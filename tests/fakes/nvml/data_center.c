/* What a GPU of a data center has besides, with AMLTRAIN_FAKE_NVML_PRICES: GPM, energy, violations, field values. */
#include "fake.h"
#include <math.h>
#include <stdlib.h>

int fake_has_prices(void);

#define ENTER_DATA_CENTER(device) do { \
        if (!fake_has_prices()) return FUNCTION_NOT_FOUND; \
        ENTER_WHOLE(device); \
    } while (0)

/* ---- GPM: means between two samples; two that are closer than 0.1 s have no values, as seen on an H100 ---- */

struct support { unsigned int version, supported; };
struct gpm_sample { int gpu; double time; };
struct metric { unsigned int id; int code; double value; const char *short_name, *long_name, *unit; };
struct metrics { unsigned int version, count; struct gpm_sample *first, *second; struct metric metrics[]; };

#define SHORTEST 0.1

/* nvmlGpmMetricId_t -> place in struct reading: graphics, SM, occupancy, any tensor, DRAM, PCIe sent, PCIe received. */
static const unsigned int ids[7] = {1, 2, 3, 5, 10, 20, 21};
static int place;
static double at_place(const struct reading *reading) { return reading->gpm[place]; }

result nvmlGpmQueryDeviceSupport(void *device, struct support *out) {
    ENTER_DATA_CENTER(device);
    out->supported = 1;
    return OK;
}

result nvmlGpmSampleAlloc(struct gpm_sample **out) {
    ENTER_SYSTEM();
    *out = calloc(1, sizeof **out);
    return *out ? OK : 999;
}

result nvmlGpmSampleFree(struct gpm_sample *sample) {
    ENTER_SYSTEM();
    free(sample);
    return OK;
}

result nvmlGpmSampleGet(void *device, struct gpm_sample *sample) {
    ENTER_DATA_CENTER(device);
    sample->gpu = fake_parent(device);
    sample->time = fake_now();
    return OK;
}

result nvmlGpmMetricsGet(struct metrics *out) {
    double seconds;
    unsigned int k;
    int gpu;
    ENTER_SYSTEM();
    if (out->version != 1 || !out->first || !out->second || out->first->gpu != out->second->gpu) return INVALID;
    gpu = out->first->gpu;
    seconds = out->second->time - out->first->time;
    for (k = 0; k < out->count; k++) {
        struct metric *metric = &out->metrics[k];
        for (place = 0; place < 7 && ids[place] != metric->id; place++) continue;
        metric->code = place < 7 ? OK : NOT_SUPPORTED;
        metric->value = 0;
        if (place < 7 && seconds < SHORTEST) metric->value = place == 4 ? NAN : 0;
        else if (place < 7)
            metric->value = (fake_integral(gpu, out->second->time, at_place)
                             - fake_integral(gpu, out->first->time, at_place)) / seconds;
    }
    return OK;
}

/* ---- counters ---- */

static double power(const struct reading *reading) { return reading->power; }
static double capped(const struct reading *reading) { return reading->power > 690; }

result nvmlDeviceGetTotalEnergyConsumption(void *device, unsigned long long *millijoules) {
    ENTER_DATA_CENTER(device);
    *millijoules = (unsigned long long)(1e6 + 1000 * fake_integral(fake_parent(device), fake_now(), power));
    return OK;
}

struct violation { unsigned long long reference, nanoseconds; };

result nvmlDeviceGetViolationStatus(void *device, unsigned int policy, struct violation *out) {
    ENTER_DATA_CENTER(device);
    out->reference = (unsigned long long)(1e6 * fake_now());
    out->nanoseconds = policy ? 0 : (unsigned long long)(1e9 * fake_integral(fake_parent(device), fake_now(), capped));
    return OK;
}

struct field {
    unsigned int id, scope;
    long long time, microseconds;
    unsigned int type;
    int code;
    unsigned long long value;
};

result nvmlDeviceGetFieldValues(void *device, int count, struct field *fields) {
    int k;
    ENTER_DATA_CENTER(device);
    for (k = 0; k < count; k++) {
        place = fields[k].id == 197 ? 5 : 6;  /* bytes sent, received by PCIe */
        fields[k].code = fields[k].id == 197 || fields[k].id == 198 ? OK : NOT_SUPPORTED;
        fields[k].type = 3;
        fields[k].value = (unsigned long long)(1048576.0 * fake_integral(fake_parent(device), fake_now(), at_place));
    }
    return OK;
}
