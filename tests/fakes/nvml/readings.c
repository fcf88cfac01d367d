/* What the fake's devices measure: curves, the driver's sample buffer, and readings that never change. */
#include "fake.h"
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef struct { unsigned long long total, free, used; } memory_info;
typedef struct { unsigned int version; unsigned long long total, reserved, free, used; } memory_info_v2;
typedef struct { unsigned int gpu, memory; } utilization;
typedef struct { unsigned long long time; unsigned long long value; } sample;

struct point { double time; struct reading reading; };
static struct point *points[MOST];
static int counts[MOST];
static const struct reading idle = {0, 1024, 75.5, 35, 210, {0}};

#define BUFFERED 120  /* samples that the driver keeps */
double fake_sample_rate(void);
void fake_set_epoch(double epoch);

static void add(int gpu, struct point point) {
    if ((counts[gpu] & (counts[gpu] - 1)) == 0)
        points[gpu] = realloc(points[gpu], sizeof point * (size_t)(counts[gpu] ? 2 * counts[gpu] : 1));
    points[gpu][counts[gpu]++] = point;
}

void fake_read_curves(void) {
    const char *path = getenv("AMLTRAIN_FAKE_NVML_CURVES");
    FILE *file = path ? fopen(path, "r") : NULL;
    char line[512], who[16];
    struct point p;
    double epoch;
    int gpu;
    memset(counts, 0, sizeof counts);
    if (!file) return;
    while (fgets(line, sizeof line, file)) {
        if (sscanf(line, "epoch %lf", &epoch) == 1) { fake_set_epoch(epoch); continue; }
        p.reading = idle;
        if (sscanf(line, "%15s %lf %lf %lf %lf %lf %lf %lf %lf %lf %lf %lf %lf %lf", who, &p.time, &p.reading.util,
                   &p.reading.memory, &p.reading.power, &p.reading.temperature, &p.reading.clock, &p.reading.gpm[0],
                   &p.reading.gpm[1], &p.reading.gpm[2], &p.reading.gpm[3], &p.reading.gpm[4], &p.reading.gpm[5],
                   &p.reading.gpm[6]) < 5) continue;
        for (gpu = 0; gpu < MOST; gpu++) if (who[0] == '*' || gpu == atoi(who)) add(gpu, p);
    }
    fclose(file);
}

struct reading fake_reading(int gpu, double time) {
    int low = 0, high = counts[gpu];  /* the last point that is not later */
    while (low < high) {
        int middle = (low + high) / 2;
        if (points[gpu][middle].time <= time) low = middle + 1; else high = middle;
    }
    return low ? points[gpu][low - 1].reading : idle;
}

double fake_integral(int gpu, double time, double (*value)(const struct reading *)) {
    double sum = 0, from = 0;
    const struct reading *now = &idle;
    int k;
    for (k = 0; k < counts[gpu] && points[gpu][k].time <= time; k++) {
        if (points[gpu][k].time > from) sum += value(now) * (points[gpu][k].time - from), from = points[gpu][k].time;
        now = &points[gpu][k].reading;
    }
    return time > from ? sum + value(now) * (time - from) : sum;
}

static struct reading of(void *device) { return fake_reading(fake_parent(device), fake_now()); }

static unsigned long long share(void *device, double bytes) {
    return (unsigned long long)(fake_instance(device) < 0 ? bytes : floor(bytes / PARTS));
}

result nvmlDeviceGetMemoryInfo(void *device, memory_info *memory) {
    ENTER(device);
    memory->total = share(device, TOTAL);
    memory->used = share(device, of(device).memory * (1 << 20));
    memory->free = memory->total - memory->used;
    return OK;
}

result nvmlDeviceGetMemoryInfo_v2(void *device, memory_info_v2 *memory) {
    ENTER(device);
    if (memory->version != 0x02000028) return 25;
    memory->total = share(device, TOTAL);
    memory->reserved = 0;
    memory->used = share(device, of(device).memory * (1 << 20));
    memory->free = memory->total - memory->used;
    return OK;
}

result nvmlDeviceGetUtilizationRates(void *device, utilization *now) {
    ENTER_WHOLE(device);
    now->gpu = (unsigned int)of(device).util;
    now->memory = now->gpu / 2;
    return OK;
}

result nvmlDeviceGetSamples(void *device, unsigned int kind, unsigned long long since, unsigned int *type,
                            unsigned int *number, sample *into) {
    double rate = fake_sample_rate(), now = fake_now();
    long long last = (long long)floor(now * rate + 1e-9), k;
    unsigned int room = *number, seen = 0;
    ENTER_WHOLE(device);
    if (kind != 1) return NOT_SUPPORTED;
    if (rate <= 0) return NOT_FOUND;
    *type = 1;
    if (!into) { *number = BUFFERED; return OK; }
    for (k = last - BUFFERED + 1; k <= last && seen < room; k++) {
        unsigned long long time = (unsigned long long)llround((fake_epoch() + (double)k / rate) * 1e6);
        if (time <= since) continue;
        into[seen].time = time;
        into[seen++].value = (unsigned int)fake_reading(fake_parent(device), (double)k / rate).util;
    }
    *number = seen;
    return seen ? OK : NOT_FOUND;
}

result nvmlDeviceGetPowerUsage(void *device, unsigned int *milliwatts) {
    ENTER_WHOLE(device);
    *milliwatts = (unsigned int)lround(of(device).power * 1000);
    return OK;
}

result nvmlDeviceGetTemperature(void *device, unsigned int sensor, unsigned int *celsius) {
    ENTER_WHOLE(device);
    if (sensor) return INVALID;
    *celsius = (unsigned int)of(device).temperature;
    return OK;
}

/* Kinds of clocks: 0 graphics, 1 SM, 2 memory, 3 video. */
result nvmlDeviceGetClockInfo(void *device, unsigned int kind, unsigned int *megahertz) {
    ENTER_WHOLE(device);
    *megahertz = kind == 2 ? 2619 : (unsigned int)of(device).clock;
    return OK;
}

result nvmlDeviceGetMaxClockInfo(void *device, unsigned int kind, unsigned int *megahertz) {
    ENTER_WHOLE(device);
    *megahertz = kind == 2 ? 2619 : 1980;
    return OK;
}

/* As a real one: near its power limit a GPU slows down (bit 2), idle it has bit 0. */
static result reasons(void *device, unsigned long long *bits) {
    struct reading now = of(device);
    *bits = now.power > 690 ? 4 : now.util < 1 ? 1 : 0;
    return OK;
}
result nvmlDeviceGetCurrentClocksThrottleReasons(void *device, unsigned long long *bits) {
    ENTER_WHOLE(device);
    return reasons(device, bits);
}
result nvmlDeviceGetCurrentClocksEventReasons(void *device, unsigned long long *bits) {
    ENTER_WHOLE(device);
    return reasons(device, bits);
}

result nvmlDeviceGetTotalEccErrors(void *device, unsigned int kind, unsigned int counter, unsigned long long *errors) {
    ENTER_WHOLE(device);
    *errors = kind == 1 && counter == 0 ? 0 : 3;
    return OK;
}

result nvmlDeviceGetEnforcedPowerLimit(void *device, unsigned int *milliwatts) {
    ENTER_WHOLE(device);
    *milliwatts = 700000;
    return OK;
}
result nvmlDeviceGetPowerManagementLimit(void *device, unsigned int *milliwatts) {
    ENTER_WHOLE(device);
    *milliwatts = 700000;
    return OK;
}
