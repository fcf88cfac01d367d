/* A fake libnvidia-ml.so.1 under the real pynvml: life of the library, faults, time, counters.
 *
 * Environment (read at nvmlInit, so that a new process sees a change), each AMLTRAIN_FAKE_NVML_...:
 *   GPUS         number of GPUs, default 2, at most 256
 *   CURVES       file of lines "<gpu or *> <t> <util> <memory MiB> <power W> [<temperature> <SM MHz> [<graphics> <SM>
 *                <occupancy> <tensor> <DRAM> <PCIe sent> <PCIe received>]]" (percent, MiB/s; of GPM), t in seconds
 *                since the epoch, each valid until the next; and at most one line "epoch <unix s>"
 *   PRICES       file of lines "<function> <us>": each call keeps its thread busy for so long; with it the fake also
 *                has what a data center GPU has: GPM, energy, violation counters, field values
 *   EPOCH        unix seconds of t = 0; default: the file's, else the time of nvmlInit
 *   CLOCK        file of 8 bytes, a native double: t itself, in place of the machine's clock
 *   SAMPLE_HZ    samples a second in the utilization buffer, default 10; 0: the buffer stays empty
 *   PROCESSES    file of lines "<gpu> <pid> <bytes or -1>": compute processes, read at each call
 *   PIDS         host: each pid is another one than here; mixed: each second one; empty: none is listed
 *   MIG          list "<gpu>:<instances>,...": split GPUs
 *   NAME         what the GPUs are called, default Fake H100 80GB
 *   MEMORY       MiB of a GPU, default 80 GiB
 *   UNSUPPORTED  list of functions that answer NOT_SUPPORTED (versions without suffix; short: name, memory, processes)
 *   MISSING      list of functions that answer FUNCTION_NOT_FOUND
 *   LOST         list "<gpu>:<from>[:<until>],...": seconds in which a GPU is off the bus
 *   UNLOAD       "<from>[:<until>]": seconds in which the driver is unloaded; a library must be initialized again
 *   BROKEN       non-empty: nvmlInit answers DRIVER_NOT_LOADED
 *   HANG         seconds that nvmlInit sleeps
 *   LOG          file to which every nvmlInit appends its pid
 *   DELAY_US     microseconds that every call sleeps
 *   CALLS        file of 64-byte records (56 bytes name, 8 bytes count), shared by all processes
 *
 * Types and numbers follow the published NVML API reference.
 */
#include "fake.h"
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

unsigned long long fake_total = 80ULL << 30;
const char *fake_name = "Fake H100 80GB";

#define FUNCTIONS 128
#define ENV(name) getenv("AMLTRAIN_FAKE_NVML_" name)

struct record { char name[56]; unsigned long long count; };
static struct record own[FUNCTIONS], *shared = NULL;
static struct { int missing, unsupported; double price; } faults[FUNCTIONS];
static char *prices = NULL;  /* the file */
static int known = 0, ready = 0;
static struct { double from, until; } lost[MOST], unload;
static double start = 0, sample_rate = 10;
static const double *clock_file = NULL;
static long delay = 0;

unsigned int fake_count, fake_migs[MOST];
char fake_gpus[MOST], fake_instances[MOST][MOST_MIG];

double fake_epoch(void) { return start; }
double fake_sample_rate(void) { return sample_rate; }
void fake_set_epoch(double epoch) { start = epoch; }

static double unix_now(void) {
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    return (double)now.tv_sec + 1e-9 * (double)now.tv_nsec;
}

double fake_now(void) { return clock_file ? *clock_file : unix_now() - start; }

static void *map(const char *path, size_t size, int writable) {
    int file = open(path, writable ? O_RDWR | O_CREAT : O_RDONLY, 0600);
    void *at;
    if (file < 0) return NULL;
    if (writable && ftruncate(file, (off_t)size)) { close(file); return NULL; }
    at = mmap(NULL, size, writable ? PROT_READ | PROT_WRITE : PROT_READ, MAP_SHARED, file, 0);
    close(file);
    return at == MAP_FAILED ? NULL : at;
}

/* Whether a comma list names the function, with or without its version's suffix. */
static int names(const char *list, const char *function) {
    static const char *const shorts[][2] = {
        {"name", "nvmlDeviceGetName"}, {"memory", "nvmlDeviceGetMemoryInfo"},
        {"processes", "nvmlDeviceGetComputeRunningProcesses"}};
    char copy[4096], *rest = copy, *token;
    size_t length, i;
    if (!list) return 0;
    snprintf(copy, sizeof copy, "%s", list);
    while ((token = strsep(&rest, ",")) != NULL) {
        for (i = 0; i < 3; i++) if (!strcmp(token, shorts[i][0])) token = (char *)shorts[i][1];
        length = strlen(token);
        if (length && !strncmp(token, function, length) && (!function[length] || !strncmp(function + length, "_v", 2)))
            return 1;
    }
    return 0;
}

int fake_has_prices(void) { return prices != NULL; }

/* Microseconds of a call; a line names a function with or without its version's suffix. */
static double price_of(const char *function) {
    const char *line = prices;
    char name[64];
    double price;
    for (; line && *line; line = strchr(line, '\n'), line = line ? line + 1 : line) {
        if (sscanf(line, "%63s %lf", name, &price) == 2 && names(name, function)) return price;
    }
    return 0;
}

static void read_prices(const char *path) {
    FILE *file = path ? fopen(path, "r") : NULL;
    free(prices);
    prices = NULL;
    if (!file) return;
    prices = calloc(1, 1 << 16);
    if (prices) prices[fread(prices, 1, (1 << 16) - 1, file)] = 0;
    fclose(file);
}

/* Of this thread's time: on a busy machine the price stays the same. */
static double thread_seconds(void) {
    struct timespec now;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
    return (double)now.tv_sec + 1e-9 * (double)now.tv_nsec;
}

static void spend(double microseconds) {
    double until = thread_seconds() + 1e-6 * microseconds;
    while (thread_seconds() < until) continue;
}

static void look_for_faults(int id) {
    faults[id].price = price_of(own[id].name);
    faults[id].missing = names(ENV("MISSING"), own[id].name);
    faults[id].unsupported = names(ENV("UNSUPPORTED"), own[id].name);
}

static int within(double from, double until) {
    double now = fake_now();
    return until > from && now >= from && now < until;
}

result fake_enter(int *id, const char *function, void *device, int of_device) {
    int at;
    if (*id < 0) {
        *id = known++;
        snprintf(own[*id].name, sizeof own[*id].name, "%s", function);
        look_for_faults(*id);
    }
    own[*id].count++;
    if (shared) {  /* another process may have numbered the functions differently */
        for (at = 0; at < FUNCTIONS; at++) {
            if (!shared[at].name[0]) memcpy(shared[at].name, own[*id].name, sizeof own[*id].name);
            if (!strcmp(shared[at].name, own[*id].name)) break;
        }
        if (at < FUNCTIONS) __atomic_add_fetch(&shared[at].count, 1, __ATOMIC_RELAXED);
    }
    if (delay) {
        struct timespec pause = {delay / 1000000, delay % 1000000 * 1000};
        nanosleep(&pause, NULL);
    }
    if (faults[*id].price > 0) spend(faults[*id].price);
    if (faults[*id].missing) return FUNCTION_NOT_FOUND;
    if (within(unload.from, unload.until)) ready = 0;
    if (!ready) return UNINITIALIZED;
    if (!of_device) return OK;
    at = fake_parent(device);
    if (at < 0) return INVALID;
    if (within(lost[at].from, lost[at].until)) return GPU_IS_LOST;
    return faults[*id].unsupported ? NOT_SUPPORTED : OK;
}

static void read_environment(void) {
    const char *text = ENV("GPUS"), *at;
    double from, until;
    unsigned int number;
    int gpu, i, used;
    fake_count = text ? (unsigned int)atoi(text) : 2;
    if (fake_count > MOST) fake_count = MOST;
    start = ENV("EPOCH") ? atof(ENV("EPOCH")) : unix_now();
    fake_read_curves();
    if (ENV("EPOCH")) start = atof(ENV("EPOCH"));
    clock_file = ENV("CLOCK") ? map(ENV("CLOCK"), sizeof(double), 0) : NULL;
    sample_rate = ENV("SAMPLE_HZ") ? atof(ENV("SAMPLE_HZ")) : 10;
    fake_total = ENV("MEMORY") ? strtoull(ENV("MEMORY"), NULL, 10) << 20 : 80ULL << 30;
    fake_name = ENV("NAME") ? ENV("NAME") : "Fake H100 80GB";
    read_prices(ENV("PRICES"));
    delay = ENV("DELAY_US") ? atol(ENV("DELAY_US")) : 0;
    if (!shared && ENV("CALLS")) shared = map(ENV("CALLS"), sizeof own, 1);
    memset(fake_migs, 0, sizeof fake_migs);
    for (at = ENV("MIG"); at && sscanf(at, "%d:%u", &gpu, &number) == 2; at = strchr(at, ','), at = at ? at + 1 : at)
        if (gpu >= 0 && gpu < MOST) fake_migs[gpu] = number > MOST_MIG ? MOST_MIG : number;
    memset(lost, 0, sizeof lost);
    for (at = ENV("LOST"); at; at = strchr(at, ','), at = at ? at + 1 : at) {
        until = 1e300;
        used = sscanf(at, "%d:%lf:%lf", &gpu, &from, &until);
        if (used >= 2 && gpu >= 0 && gpu < MOST) lost[gpu].from = from, lost[gpu].until = until;
    }
    unload.from = unload.until = 0;
    if (ENV("UNLOAD") && *ENV("UNLOAD")) {
        unload.until = 1e300;
        sscanf(ENV("UNLOAD"), "%lf:%lf", &unload.from, &unload.until);
    }
    for (i = 0; i < known; i++) look_for_faults(i);
}

static result initialize(void) {
    FILE *file = ENV("LOG") ? fopen(ENV("LOG"), "a") : NULL;
    if (file) {
        fprintf(file, "%d\n", getpid());
        fclose(file);
    }
    if (ENV("HANG")) sleep((unsigned int)atoi(ENV("HANG")));
    if (ENV("BROKEN") && *ENV("BROKEN")) return DRIVER_NOT_LOADED;
    if (!start) read_environment();
    if (within(unload.from, unload.until)) return DRIVER_NOT_LOADED;
    ready = 1;
    return OK;
}

result nvmlInit_v2(void) { return initialize(); }
result nvmlInitWithFlags(unsigned int flags) { (void)flags; return initialize(); }
result nvmlShutdown(void) { ready = 0; return OK; }

/* Calls of one function in this process, or of all functions for NULL. */
unsigned long long amltrain_fake_calls(const char *function) {
    unsigned long long sum = 0;
    int i;
    for (i = 0; i < known; i++) if (!function || !strcmp(function, own[i].name)) sum += own[i].count;
    return sum;
}

/* Name of the function with this number, or NULL: for those who list all counters. */
const char *amltrain_fake_function(int id) { return id >= 0 && id < known ? own[id].name : NULL; }

const char *nvmlErrorString(result code) {
    switch (code) {
    case OK: return "Success";
    case UNINITIALIZED: return "Uninitialized";
    case INVALID: return "Invalid Argument";
    case NOT_SUPPORTED: return "Not Supported";
    case NOT_FOUND: return "Not Found";
    case INSUFFICIENT_SIZE: return "Insufficient Size";
    case DRIVER_NOT_LOADED: return "Driver Not Loaded";
    case FUNCTION_NOT_FOUND: return "Function Not Found";
    case GPU_IS_LOST: return "GPU is lost";
    default: return "Unknown Error";
    }
}
