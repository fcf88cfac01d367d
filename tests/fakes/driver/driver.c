/* A libnvidia-ml.so.1 that a test switches while the processes that loaded it live.
 *
 * AMLTRAIN_SWITCHABLE_NVML names the state file, which every call reads again when it has changed:
 * lines `SCOPE.KEY<tab>VALUE`, written by SwitchableDriver of __init__.py, which documents the keys.
 * SCOPE is `sys`, `*`, a GPU (`0`) or a MIG instance of one (`0/2`). A value that is not in the file is not
 * supported; a value `!CODE` makes the function return this code. Calls are counted in `STATE.calls`, if it exists.
 */
#include <fcntl.h>
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

enum {
    OK, UNINITIALIZED, INVALID, NOT_SUPPORTED, NOT_FOUND = 6, INSUFFICIENT_SIZE = 7, DRIVER_NOT_LOADED = 9,
    TIMEOUT = 10, FUNCTION_NOT_FOUND = 13, GPU_IS_LOST = 15, MEMORY_ERROR = 20, VERSION_MISMATCH = 25
};
#define MAX_GPUS 256
#define MAX_INSTANCES 16
#define MAX_CELLS 65536
#define MAX_COUNTERS 256
#define ALL_ONES UINT64_MAX

typedef unsigned int uint;
typedef uint64_t u64;
typedef struct device { int gpu, instance; } *Device; /* instance: -1 is the whole GPU */

/* ---- the state file ---- */

struct line { const char *key, *value; };
struct counter { char name[56]; u64 count; };

static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
static struct device devices[MAX_GPUS][1 + MAX_INSTANCES];
static struct line *lines;
static size_t line_count;
static char *text_of_state;
static struct stat identity;
static struct counter *counters;
static int initialized;
static u64 cells[MAX_CELLS]; /* numbers of one value, while the mutex is held */

__attribute__((constructor)) static void number_devices(void)
{
    for (int gpu = 0; gpu < MAX_GPUS; gpu++)
        for (int k = 0; k <= MAX_INSTANCES; k++)
            devices[gpu][k] = (struct device){gpu, k - 1};
}

static int by_key(const void *a, const void *b)
{
    return strcmp(((const struct line *)a)->key, ((const struct line *)b)->key);
}

static void forget_state(void)
{
    free(lines);
    free(text_of_state);
    lines = NULL;
    text_of_state = NULL;
    line_count = 0;
    memset(&identity, 0, sizeof identity);
}

static void refresh(void)
{
    const char *path = getenv("AMLTRAIN_SWITCHABLE_NVML");
    struct stat now;
    if (!path || stat(path, &now)) {
        forget_state();
        return;
    }
    if (now.st_ino == identity.st_ino && now.st_size == identity.st_size &&
        now.st_mtim.tv_sec == identity.st_mtim.tv_sec && now.st_mtim.tv_nsec == identity.st_mtim.tv_nsec)
        return;
    int file = open(path, O_RDONLY | O_CLOEXEC);
    if (file < 0)
        return;
    forget_state();
    fstat(file, &identity);
    text_of_state = calloc(1, identity.st_size + 1);
    size_t size = 0;
    for (ssize_t got; (got = read(file, text_of_state + size, identity.st_size - size)) > 0;)
        size += got;
    close(file);
    size_t room = 1;
    for (char *at = text_of_state; *at; at++)
        room += *at == '\n';
    lines = calloc(room, sizeof *lines);
    char *rest = text_of_state;
    for (char *line; (line = strsep(&rest, "\n"));) {
        char *tab = strchr(line, '\t');
        if (tab) {
            *tab = 0;
            lines[line_count++] = (struct line){line, tab + 1};
        }
    }
    qsort(lines, line_count, sizeof *lines, by_key);
}

static const char *look_up(const char *scope, const char *key)
{
    char full[160];
    struct line wanted = {full, NULL};
    snprintf(full, sizeof full, "%s.%s", scope, key);
    struct line *found = line_count ? bsearch(&wanted, lines, line_count, sizeof *lines, by_key) : NULL;
    return found ? found->value : NULL;
}

static const char *value_of(Device device, const char *key)
{
    char scope[32];
    if (!device)
        return look_up("sys", key);
    if (device->instance < 0)
        snprintf(scope, sizeof scope, "%d", device->gpu);
    else
        snprintf(scope, sizeof scope, "%d/%d", device->gpu, device->instance);
    return look_up(scope, key);
}

/* Copy a value; the code to return. */
static int get_text(Device device, const char *key, char *out, uint size)
{
    const char *value = value_of(device, key);
    if (!out)
        return INVALID;
    if (!value)
        return NOT_SUPPORTED;
    if (*value == '!')
        return atoi(value + 1);
    if (strlen(value) >= size)
        return INSUFFICIENT_SIZE;
    strcpy(out, value);
    return OK;
}

/* Split a list of numbers into `cells`: how many there are. */
static size_t split(const char *value)
{
    size_t n = 0;
    for (char *end; n < MAX_CELLS; value = end) {
        while (*value == ' ' || *value == ':')
            value++;
        u64 number = strtoull(value, &end, 0);
        if (end == value)
            break;
        cells[n++] = number;
    }
    return n;
}

/* Read a list into `cells`: `*n` rows of `width` numbers. */
static int get_rows(Device device, const char *key, int width, uint *n)
{
    const char *value = value_of(device, key);
    if (!value)
        return NOT_SUPPORTED;
    if (*value == '!')
        return atoi(value + 1);
    *n = split(value) / width;
    return OK;
}

static int get_numbers(Device device, const char *key, uint width)
{
    uint rows;
    int code = get_rows(device, key, width, &rows);
    return code ? code : rows ? OK : NOT_SUPPORTED;
}

static u64 number_or(Device device, const char *key, u64 other)
{
    return get_numbers(device, key, 1) ? other : cells[0];
}

/* ---- what every call does first ---- */

static void count_call(const char *name)
{
    const char *state = getenv("AMLTRAIN_SWITCHABLE_NVML");
    if (!counters) {
        char path[4096];
        snprintf(path, sizeof path, "%s.calls", state ? state : "");
        int file = state ? open(path, O_RDWR | O_CLOEXEC) : -1;
        if (file < 0)
            return;
        void *map = mmap(NULL, MAX_COUNTERS * sizeof *counters, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
        close(file);
        if (map == MAP_FAILED)
            return;
        counters = map;
    }
    for (int k = 0; k < MAX_COUNTERS; k++) {
        char free_name[56] = "";
        /* The first byte claims the row: two processes never share one, though both may name it. */
        if (!counters[k].name[0] && __sync_bool_compare_and_swap(&counters[k].name[0], 0, name[0])) {
            strncpy(free_name, name, sizeof free_name - 1);
            memcpy(counters[k].name + 1, free_name + 1, sizeof free_name - 1);
        }
        if (!strcmp(counters[k].name, name)) {
            __sync_fetch_and_add(&counters[k].count, 1);
            return;
        }
    }
}

/* A switch of this function: of the device, else of all. */
static const char *switch_of(const char *what, const char *function, Device device)
{
    char key[128];
    snprintf(key, sizeof key, "%s.%s", what, function);
    const char *value = device ? value_of(device, key) : NULL;
    return value ? value : look_up("*", key);
}

static double seconds_now(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return now.tv_sec + now.tv_nsec / 1e9;
}

/* Let other threads call, and the test switch. */
static void pause_unlocked(void)
{
    pthread_mutex_unlock(&mutex);
    usleep(5000);
    pthread_mutex_lock(&mutex);
    refresh();
}

enum { ANYTIME, INITIALIZED, OF_DEVICE };

static int enter(const char *function, Device device, int needs)
{
    refresh();
    count_call(function);
    int known = !device || ((char *)device >= (char *)devices && (char *)device < (char *)(devices + MAX_GPUS) &&
                            ((char *)device - (char *)devices) % sizeof(struct device) == 0);
    Device asked = known ? device : NULL;
    double began = seconds_now();
    for (const char *delay; (delay = switch_of("slow", function, asked)) && seconds_now() - began < atof(delay);)
        pause_unlocked(); /* a delay that is switched off ends at once */
    const char *code = value_of(NULL, "down");
    if (!code)
        code = switch_of("answer", function, asked);
    if (code)
        return atoi(code);
    if (needs != ANYTIME && !initialized)
        return UNINITIALIZED;
    if (needs != OF_DEVICE)
        return OK;
    if (!asked)
        return INVALID;
    code = value_of(&devices[device->gpu][0], "lost");
    return code ? atoi(code) : OK;
}

static void leave(int *unused)
{
    (void)unused;
    pthread_mutex_unlock(&mutex);
}

#define ENTER_AS(device, needs) \
    __attribute__((cleanup(leave), unused)) int locked_ = pthread_mutex_lock(&mutex); \
    do { int code_ = enter(__func__, device, needs); if (code_) return code_; } while (0)
#define ENTER(device) ENTER_AS(device, OF_DEVICE)
#define REQUIRE(condition) do { if (!(condition)) return INVALID; } while (0)

/* ---- the system ---- */

static int initialize(void)
{
    if (!line_count)
        return DRIVER_NOT_LOADED;
    initialized++;
    return OK;
}

int nvmlInit(void) { ENTER_AS(NULL, ANYTIME); return initialize(); }
int nvmlInit_v2(void) { ENTER_AS(NULL, ANYTIME); return initialize(); }
int nvmlInitWithFlags(uint flags) { ENTER_AS(NULL, ANYTIME); (void)flags; return initialize(); }
int nvmlShutdown(void) { ENTER_AS(NULL, INITIALIZED); initialized--; return OK; }

const char *nvmlErrorString(int code)
{
    static const struct { int code; const char *text; } texts[] = {
        {0, "Success"}, {1, "Uninitialized"}, {2, "Invalid Argument"}, {3, "Not Supported"},
        {4, "Insufficient Permissions"}, {6, "Not Found"}, {7, "Insufficient Size"}, {9, "Driver Not Loaded"},
        {10, "Timeout"}, {12, "NVML Shared Library Not Found"}, {13, "Function Not Found"}, {15, "GPU is lost"},
        {16, "GPU requires reset"}, {17, "GPU access blocked by the operating system"},
        {18, "RM has detected an NVML/RM version mismatch."}, {19, "In use by another client"},
        {20, "Insufficient Memory"}, {21, "No data"}, {23, "Insufficient Resources"},
        {25, "Argument version mismatch"}, {27, "Not Ready"}, {28, "GPU not found"}, {999, "Unknown Error"}};
    for (size_t k = 0; k < sizeof texts / sizeof *texts; k++)
        if (texts[k].code == code)
            return texts[k].text;
    return "Unknown Error";
}

int nvmlSystemGetDriverVersion(char *out, uint size)
{
    ENTER_AS(NULL, INITIALIZED);
    return get_text(NULL, "driver_version", out, size);
}

int nvmlSystemGetNVMLVersion(char *out, uint size)
{
    ENTER_AS(NULL, ANYTIME);
    return get_text(NULL, "nvml_version", out, size);
}

static int cuda_version(int *out)
{
    REQUIRE(out);
    int code = get_numbers(NULL, "cuda_version", 1);
    if (!code)
        *out = cells[0];
    return code;
}

int nvmlSystemGetCudaDriverVersion(int *out) { ENTER_AS(NULL, ANYTIME); return cuda_version(out); }
int nvmlSystemGetCudaDriverVersion_v2(int *out) { ENTER_AS(NULL, ANYTIME); return cuda_version(out); }

/* ---- devices: `sys.order` lists the GPUs as the driver counts them ---- */

static int give(Device device, Device *out)
{
    const char *code = value_of(&devices[device->gpu][0], "no_handle");
    if (code)
        return atoi(code);
    *out = device;
    return OK;
}

int nvmlDeviceGetCount_v2(uint *out)
{
    ENTER_AS(NULL, INITIALIZED);
    REQUIRE(out);
    return get_rows(NULL, "order", 1, out);
}

int nvmlDeviceGetHandleByIndex_v2(uint index, Device *out)
{
    uint n = 0;
    ENTER_AS(NULL, INITIALIZED);
    int code = get_rows(NULL, "order", 1, &n);
    REQUIRE(out && (code || (index < n && cells[index] < MAX_GPUS)));
    return code ? code : give(&devices[cells[index]][0], out);
}

int nvmlDeviceGetHandleByUUID(const char *uuid, Device *out)
{
    uint n = 0;
    char own[128];
    ENTER_AS(NULL, INITIALIZED);
    REQUIRE(uuid && out);
    int code = get_rows(NULL, "order", 1, &n);
    for (uint k = 0; !code && k < n; k++)
        for (int i = 0; i <= MAX_INSTANCES; i++) {
            Device device = &devices[cells[k] % MAX_GPUS][i];
            if (!get_text(device, "uuid", own, sizeof own) && !strcmp(own, uuid))
                return give(device, out);
        }
    return code ? code : NOT_FOUND;
}

static int parse_bus_id(const char *text, uint *found)
{
    return sscanf(text, "%x:%x:%x", &found[0], &found[1], &found[2]) == 3;
}

int nvmlDeviceGetHandleByPciBusId_v2(const char *bus_id, Device *out)
{
    uint n = 0, wanted[3], own[3];
    char text[64];
    ENTER_AS(NULL, INITIALIZED);
    REQUIRE(bus_id && out && parse_bus_id(bus_id, wanted));
    int code = get_rows(NULL, "order", 1, &n);
    for (uint k = 0; !code && k < n; k++) {
        Device device = &devices[cells[k] % MAX_GPUS][0];
        if (!get_text(device, "bus_id", text, sizeof text) && parse_bus_id(text, own) && !memcmp(own, wanted, sizeof own))
            return give(device, out);
    }
    return code ? code : NOT_FOUND;
}

int nvmlDeviceGetIndex(Device device, uint *out)
{
    uint n = 0;
    ENTER(device);
    REQUIRE(out);
    if (device->instance >= 0) {
        *out = device->instance;
        return OK;
    }
    int code = get_rows(NULL, "order", 1, &n);
    for (uint k = 0; !code && k < n; k++)
        if ((int)cells[k] == device->gpu) {
            *out = k;
            return OK;
        }
    return code ? code : GPU_IS_LOST;
}

#define TEXT(function, key) \
    int function(Device device, char *out, uint size) { ENTER(device); return get_text(device, key, out, size); }
TEXT(nvmlDeviceGetUUID, "uuid")
TEXT(nvmlDeviceGetName, "name")
TEXT(nvmlDeviceGetSerial, "serial")

struct pci { char legacy[16]; uint domain, bus, device, id, subsystem; char bus_id[32]; };

int nvmlDeviceGetPciInfo_v3(Device device, struct pci *out)
{
    uint found[3];
    char text[32];
    ENTER(device);
    REQUIRE(out);
    int code = get_text(device, "bus_id", text, sizeof text);
    if (code)
        return code;
    REQUIRE(parse_bus_id(text, found));
    memset(out, 0, sizeof *out);
    out->domain = found[0];
    out->bus = found[1];
    out->device = found[2];
    out->id = number_or(device, "pci_id", 0x233010DE);
    strcpy(out->bus_id, text);
    snprintf(out->legacy, sizeof out->legacy, "%04x:%02x:%02x.0", found[0] & 0xffff, found[1] & 0xff, found[2] & 0xff);
    return OK;
}

/* ---- plain numbers ---- */

#define NUMBER(function, type, key) \
    int function(Device device, type *out) \
    { \
        ENTER(device); \
        REQUIRE(out); \
        int code = get_numbers(device, key, 1); \
        if (!code) *out = (type)cells[0]; \
        return code; \
    }
/* The key ends with the number of what is asked. */
#define NUMBER_OF(function, type, key) \
    int function(Device device, uint which, type *out) \
    { \
        char name[64]; \
        ENTER(device); \
        REQUIRE(out); \
        snprintf(name, sizeof name, key ".%u", which); \
        int code = get_numbers(device, name, 1); \
        if (!code) *out = (type)cells[0]; \
        return code; \
    }
#define PAIR(function, type, key) \
    int function(Device device, type *first, type *second) \
    { \
        ENTER(device); \
        REQUIRE(first && second); \
        int code = get_numbers(device, key, 2); \
        if (!code) { *first = (type)cells[0]; *second = (type)cells[1]; } \
        return code; \
    }
NUMBER(nvmlDeviceGetMinorNumber, uint, "minor")
NUMBER(nvmlDeviceGetPowerUsage, uint, "power")
NUMBER(nvmlDeviceGetEnforcedPowerLimit, uint, "power_limit")
NUMBER(nvmlDeviceGetPowerManagementLimit, uint, "power_limit")
NUMBER(nvmlDeviceGetTotalEnergyConsumption, u64, "energy")
NUMBER(nvmlDeviceGetPerformanceState, uint, "performance_state")
NUMBER(nvmlDeviceGetPowerState, uint, "performance_state")
NUMBER(nvmlDeviceGetCurrentClocksEventReasons, u64, "clock_reasons")
NUMBER(nvmlDeviceGetCurrentClocksThrottleReasons, u64, "clock_reasons")
NUMBER(nvmlDeviceGetSupportedClocksEventReasons, u64, "supported_clock_reasons")
NUMBER(nvmlDeviceGetSupportedClocksThrottleReasons, u64, "supported_clock_reasons")
NUMBER(nvmlDeviceGetPersistenceMode, uint, "persistence")
NUMBER(nvmlDeviceGetDisplayMode, uint, "display_mode")
NUMBER(nvmlDeviceGetDisplayActive, uint, "display_active")
NUMBER(nvmlDeviceGetComputeMode, uint, "compute_mode")
NUMBER(nvmlDeviceGetFanSpeed, uint, "fan")
NUMBER(nvmlDeviceGetNumGpuCores, uint, "cores")
NUMBER(nvmlDeviceGetMemoryBusWidth, uint, "bus_width")
NUMBER(nvmlDeviceGetArchitecture, uint, "architecture")
NUMBER(nvmlDeviceGetCurrPcieLinkGeneration, uint, "pcie_generation")
NUMBER(nvmlDeviceGetCurrPcieLinkWidth, uint, "pcie_width")
NUMBER(nvmlDeviceGetMaxPcieLinkGeneration, uint, "pcie_generation")
NUMBER(nvmlDeviceGetMaxPcieLinkWidth, uint, "pcie_width")
NUMBER(nvmlDeviceGetPcieReplayCounter, uint, "pcie_replays")
NUMBER(nvmlDeviceGetRetiredPagesPendingStatus, uint, "retired_pending")
NUMBER(nvmlDeviceGetSupportedEventTypes, u64, "event_types")
NUMBER(nvmlDeviceGetMaxMigDeviceCount, uint, "mig_max")
NUMBER(nvmlDeviceGetGpuInstanceId, uint, "gpu_instance")
NUMBER(nvmlDeviceGetComputeInstanceId, uint, "compute_instance")
NUMBER_OF(nvmlDeviceGetTemperature, uint, "temperature")
NUMBER_OF(nvmlDeviceGetTemperatureThreshold, uint, "temperature_threshold")
NUMBER_OF(nvmlDeviceGetClockInfo, uint, "clock")
NUMBER_OF(nvmlDeviceGetMaxClockInfo, uint, "max_clock")
NUMBER_OF(nvmlDeviceGetPcieThroughput, uint, "pcie")
PAIR(nvmlDeviceGetEccMode, uint, "ecc_mode")
PAIR(nvmlDeviceGetMigMode, uint, "mig")
PAIR(nvmlDeviceGetCudaComputeCapability, int, "compute_capability")
PAIR(nvmlDeviceGetEncoderUtilization, uint, "encoder")
PAIR(nvmlDeviceGetDecoderUtilization, uint, "decoder")

struct temperature { uint version, sensor; int value; };

int nvmlDeviceGetTemperatureV(Device device, struct temperature *out)
{
    char key[64];
    ENTER(device);
    REQUIRE(out);
    if (out->version != (sizeof *out | 1u << 24))
        return VERSION_MISMATCH;
    snprintf(key, sizeof key, "temperature.%u", out->sensor);
    int code = get_numbers(device, key, 1);
    if (!code)
        out->value = (int)cells[0];
    return code;
}

int nvmlDeviceGetUtilizationRates(Device device, uint out[2])
{
    ENTER(device);
    REQUIRE(out);
    int code = get_numbers(device, "utilization", 2);
    if (!code) {
        out[0] = cells[0];
        out[1] = cells[1];
    }
    return code;
}

/* `memory`: bytes in all, reserved by the driver, used by processes. */
int nvmlDeviceGetMemoryInfo(Device device, u64 out[3])
{
    ENTER(device);
    REQUIRE(out);
    int code = get_numbers(device, "memory", 3);
    if (code)
        return code;
    out[0] = cells[0];
    out[2] = cells[2] == ALL_ONES ? ALL_ONES : cells[1] + cells[2];
    out[1] = out[2] > out[0] ? 0 : out[0] - out[2];
    return OK;
}

struct memory2 { uint version; u64 total, reserved, free, used; };

int nvmlDeviceGetMemoryInfo_v2(Device device, struct memory2 *out)
{
    ENTER(device);
    REQUIRE(out);
    if (out->version != (sizeof *out | 2u << 24))
        return VERSION_MISMATCH;
    int code = get_numbers(device, "memory", 3);
    if (code)
        return code;
    u64 taken = cells[2] > cells[0] ? cells[0] : cells[1] + cells[2];
    *out = (struct memory2){out->version, cells[0], cells[1], taken > cells[0] ? 0 : cells[0] - taken, cells[2]};
    return OK;
}

int nvmlDeviceGetBAR1MemoryInfo(Device device, u64 out[3])
{
    ENTER(device);
    REQUIRE(out);
    int code = get_numbers(device, "bar1", 3);
    if (!code)
        memcpy(out, cells, 3 * sizeof *out);
    return code;
}

int nvmlDeviceGetConfComputeMemSizeInfo(Device device, u64 out[2])
{
    ENTER(device);
    REQUIRE(out);
    int code = get_numbers(device, "confidential_memory", 2);
    if (!code)
        memcpy(out, cells, 2 * sizeof *out);
    return code;
}

/* ---- errors ---- */

int nvmlDeviceGetTotalEccErrors(Device device, uint error, uint counter, u64 *out)
{
    char key[64];
    ENTER(device);
    REQUIRE(out);
    snprintf(key, sizeof key, "ecc.%u.%u", error, counter);
    int code = get_numbers(device, key, 1);
    if (!code)
        *out = cells[0];
    return code;
}

int nvmlDeviceGetMemoryErrorCounter(Device device, uint error, uint counter, uint location, u64 *out)
{
    char key[64];
    ENTER(device);
    REQUIRE(out);
    snprintf(key, sizeof key, "ecc.%u.%u.%u", error, counter, location);
    int code = get_numbers(device, key, 1);
    if (!code)
        *out = cells[0];
    return code;
}

int nvmlDeviceGetRemappedRows(Device device, uint *corrected, uint *uncorrected, uint *pending, uint *failed)
{
    ENTER(device);
    REQUIRE(corrected && uncorrected && pending && failed);
    int code = get_numbers(device, "remapped_rows", 4);
    if (!code) {
        *corrected = cells[0];
        *uncorrected = cells[1];
        *pending = cells[2];
        *failed = cells[3];
    }
    return code;
}

/* `retired_pages.CAUSE` is a count: the addresses are made up. */
static int retired_pages(Device device, uint cause, uint *count, u64 *addresses, u64 *times)
{
    char key[64];
    REQUIRE(count);
    snprintf(key, sizeof key, "retired_pages.%u", cause);
    int code = get_numbers(device, key, 1);
    if (code)
        return code;
    uint room = *count;
    *count = cells[0];
    if (*count > room)
        return INSUFFICIENT_SIZE;
    REQUIRE(addresses || !*count);
    for (uint k = 0; k < *count; k++) {
        addresses[k] = 0x1000ull * (k + 1);
        if (times)
            times[k] = 1700000000ull + k;
    }
    return OK;
}

int nvmlDeviceGetRetiredPages(Device device, uint cause, uint *count, u64 *addresses)
{
    ENTER(device);
    return retired_pages(device, cause, count, addresses, NULL);
}

int nvmlDeviceGetRetiredPages_v2(Device device, uint cause, uint *count, u64 *addresses, u64 *times)
{
    ENTER(device);
    return retired_pages(device, cause, count, addresses, times);
}

int nvmlDeviceGetViolationStatus(Device device, uint policy, u64 out[2])
{
    char key[64];
    ENTER(device);
    REQUIRE(out);
    snprintf(key, sizeof key, "violation.%u", policy);
    int code = get_numbers(device, key, 2);
    if (!code)
        memcpy(out, cells, 2 * sizeof *out);
    return code;
}

/* ---- samples and fields ---- */

static u64 microseconds(const char *clock)
{
    struct timespec now;
    clock_gettime(clock && !strcmp(clock, "realtime") ? CLOCK_REALTIME : CLOCK_BOOTTIME, &now);
    return now.tv_sec * 1000000ull + now.tv_nsec / 1000;
}

struct sample { u64 time, value; };

/* `samples.KIND`: rows time:value. `stream.KIND`: a value, microseconds between its samples, how many are kept. */
int nvmlDeviceGetSamples(Device device, uint kind, u64 last_seen, uint *type, uint *count, struct sample *out)
{
    char key[64];
    uint n = 0, kept = 0;
    ENTER(device);
    REQUIRE(type && count);
    snprintf(key, sizeof key, "samples_ignore_time.%u", kind);
    if (number_or(device, key, 0))
        last_seen = 0;
    snprintf(key, sizeof key, "stream.%u", kind);
    if (value_of(device, key)) {
        int code = get_numbers(device, key, 3);
        if (code)
            return code;
        u64 value = cells[0], every = cells[1] ? cells[1] : 1, now = microseconds(value_of(NULL, "sample_clock"));
        n = cells[2] > MAX_CELLS / 2 ? MAX_CELLS / 2 : cells[2];
        for (uint k = 0; k < n; k++) {
            cells[2 * k] = (now / every - n + 1 + k) * every;
            cells[2 * k + 1] = value;
        }
    } else {
        snprintf(key, sizeof key, "samples.%u", kind);
        int code = get_rows(device, key, 2, &n);
        if (code)
            return code;
    }
    *type = 1; /* unsigned int */
    if (!out) {
        *count = n;
        return n ? OK : NOT_FOUND;
    }
    for (uint k = 0; k < n && kept < *count; k++)
        if (!cells[2 * k] || cells[2 * k] > last_seen) /* a row of time zero is one that was never filled */
            out[kept++] = (struct sample){cells[2 * k], cells[2 * k + 1]};
    *count = kept;
    return kept ? OK : NOT_FOUND;
}

struct field { uint id, scope; int64_t time, latency; int type, code; union { double real; u64 number; } value; };

/* `field.ID` or `field.ID.SCOPE`: type (nvmlValueType_t) and number. */
int nvmlDeviceGetFieldValues(Device device, int count, struct field *out)
{
    ENTER(device);
    REQUIRE(out && count > 0);
    for (int k = 0; k < count; k++) {
        char key[64];
        struct field *field = &out[k];
        snprintf(key, sizeof key, field->scope ? "field.%u.%u" : "field.%u", field->id, field->scope);
        const char *value = value_of(device, key);
        field->time = microseconds("realtime");
        field->latency = 0;
        field->value.number = 0;
        field->code = !value ? NOT_SUPPORTED : *value == '!' ? atoi(value + 1) : OK;
        if (field->code)
            continue;
        field->type = atoi(value);
        value = strchr(value, ' ');
        if (value && field->type == 0)
            field->value.real = atof(value);
        else if (value)
            field->value.number = strtoull(value, NULL, 0);
    }
    return OK;
}

/* ---- processes: rows pid:bytes:GPU instance:compute instance:protected bytes ---- */

struct process1 { uint pid; u64 memory; };
struct process { uint pid; u64 memory; uint gpu_instance, compute_instance; };
struct process_protected { uint pid; u64 memory; uint gpu_instance, compute_instance; u64 protected_memory; };

/* Read the rows of a GPU, or those of one instance, into `cells`. */
static int get_processes(Device device, const char *kind, uint *n)
{
    Device parent = &devices[device->gpu][0];
    if (device->instance < 0 || value_of(device, kind))
        return get_rows(device, kind, 5, n);
    u64 gpu_instance = number_or(device, "gpu_instance", 0), compute_instance = number_or(device, "compute_instance", 0);
    uint all = 0;
    int code = get_rows(parent, kind, 5, &all);
    *n = 0;
    for (uint k = 0; !code && k < all; k++)
        if (cells[5 * k + 2] == gpu_instance && cells[5 * k + 3] == compute_instance)
            memmove(&cells[5 * (*n)++], &cells[5 * k], 5 * sizeof *cells);
    return code;
}

static int list_processes(Device device, const char *kind, size_t row, uint *count, void *out)
{
    uint n = 0;
    REQUIRE(count);
    int code = get_processes(device, kind, &n);
    if (code)
        return code;
    uint room = *count;
    *count = n;
    if (n > room)
        return INSUFFICIENT_SIZE;
    REQUIRE(out || !n);
    for (uint k = 0; k < n; k++) {
        u64 *c = &cells[5 * k];
        struct process_protected full = {c[0], c[1], c[2], c[3], c[4]};
        memcpy((char *)out + k * row, &full, row); /* older rows are beginnings of it */
    }
    return OK;
}

static size_t row_of_v3(void)
{
    return number_or(NULL, "process_row_v3", sizeof(struct process));
}

#define PROCESSES(function, kind, row) \
    int function(Device device, uint *count, void *out) { ENTER(device); return list_processes(device, kind, row, count, out); }
PROCESSES(nvmlDeviceGetComputeRunningProcesses, "compute", sizeof(struct process1))
PROCESSES(nvmlDeviceGetComputeRunningProcesses_v2, "compute", sizeof(struct process))
PROCESSES(nvmlDeviceGetComputeRunningProcesses_v3, "compute", row_of_v3())
PROCESSES(nvmlDeviceGetGraphicsRunningProcesses, "graphics", sizeof(struct process1))
PROCESSES(nvmlDeviceGetGraphicsRunningProcesses_v2, "graphics", sizeof(struct process))
PROCESSES(nvmlDeviceGetGraphicsRunningProcesses_v3, "graphics", row_of_v3())
PROCESSES(nvmlDeviceGetMPSComputeRunningProcesses, "mps", sizeof(struct process1))
PROCESSES(nvmlDeviceGetMPSComputeRunningProcesses_v2, "mps", sizeof(struct process))
PROCESSES(nvmlDeviceGetMPSComputeRunningProcesses_v3, "mps", row_of_v3())

struct process_list { uint version, mode, count; struct process_protected *rows; };

int nvmlDeviceGetRunningProcessDetailList(Device device, struct process_list *list)
{
    static const char *const kinds[] = {"compute", "graphics", "mps"};
    ENTER(device);
    REQUIRE(list && list->mode < 3);
    if (list->version != (sizeof *list | 1u << 24))
        return VERSION_MISMATCH;
    return list_processes(device, kinds[list->mode], sizeof *list->rows, &list->count, list->rows);
}

struct process_sample { uint pid; u64 time; uint sm, memory, encoder, decoder; };
struct process_info { u64 time; uint pid, sm, memory, encoder, decoder, jpeg, ofa; };
struct process_infos { uint version, count; u64 last_seen; struct process_info *rows; };

/* `process_utilization`: rows pid:time:sm:memory:encoder:decoder; those after a time are put first in `cells`. */
static int get_process_utilization(Device device, u64 last_seen, uint *n)
{
    uint all = 0;
    int code = get_rows(device, "process_utilization", 6, &all);
    *n = 0;
    for (uint k = 0; !code && k < all; k++)
        if (cells[6 * k + 1] > last_seen)
            memmove(&cells[6 * (*n)++], &cells[6 * k], 6 * sizeof *cells);
    return code ? code : *n ? OK : NOT_FOUND;
}

int nvmlDeviceGetProcessUtilization(Device device, struct process_sample *out, uint *count, u64 last_seen)
{
    uint n;
    ENTER(device);
    REQUIRE(count);
    int code = get_process_utilization(device, last_seen, &n);
    uint room = *count;
    *count = n;
    if (code || !out || n > room)
        return code ? code : INSUFFICIENT_SIZE;
    for (uint k = 0; k < n; k++) {
        u64 *c = &cells[6 * k];
        out[k] = (struct process_sample){c[0], c[1], c[2], c[3], c[4], c[5]};
    }
    return OK;
}

int nvmlDeviceGetProcessesUtilizationInfo(Device device, struct process_infos *out)
{
    uint n;
    ENTER(device);
    REQUIRE(out);
    if (out->version != (sizeof *out | 1u << 24))
        return VERSION_MISMATCH;
    int code = get_process_utilization(device, out->last_seen, &n);
    uint room = out->count;
    out->count = n;
    if (code || !out->rows || n > room)
        return code ? code : INSUFFICIENT_SIZE;
    for (uint k = 0; k < n; k++) {
        u64 *c = &cells[6 * k];
        out->rows[k] = (struct process_info){c[1], c[0], c[2], c[3], c[4], c[5], 0, 0};
    }
    return OK;
}

/* ---- events: `sys.events` lists number:GPU:type:data:GPU instance:compute instance ---- */

struct event_set { u64 seen; struct { u64 types, since; } gpus[MAX_GPUS]; };
struct event { Device device; u64 type, data; uint gpu_instance, compute_instance; };

int nvmlEventSetCreate(struct event_set **out)
{
    ENTER_AS(NULL, INITIALIZED);
    REQUIRE(out);
    *out = calloc(1, sizeof **out);
    return *out ? OK : MEMORY_ERROR;
}

int nvmlDeviceRegisterEvents(Device device, u64 types, struct event_set *set)
{
    uint n = 0;
    ENTER(device);
    REQUIRE(set);
    u64 supported = number_or(device, "event_types", 0);
    if (device->instance >= 0 || types & ~supported)
        return NOT_SUPPORTED;
    set->gpus[device->gpu].types |= types;
    if (!get_rows(NULL, "events", 6, &n) && n)
        set->gpus[device->gpu].since = cells[6 * (n - 1)];
    return OK;
}

static int wait_for_event(struct event_set *set, struct event *out, uint milliseconds)
{
    REQUIRE(set && out);
    for (double end = seconds_now() + milliseconds / 1e3;; pause_unlocked()) {
        uint n = 0;
        if (get_rows(NULL, "events", 6, &n))
            n = 0;
        for (uint k = 0; k < n; k++) {
            u64 *c = &cells[6 * k], gpu = c[1] % MAX_GPUS;
            if (c[0] > set->seen && c[0] > set->gpus[gpu].since && c[2] & set->gpus[gpu].types) {
                set->seen = c[0];
                *out = (struct event){&devices[gpu][0], c[2], c[3], c[4], c[5]};
                return OK;
            }
        }
        if (seconds_now() >= end)
            return TIMEOUT;
    }
}

int nvmlEventSetWait(struct event_set *set, struct event *out, uint milliseconds)
{
    ENTER_AS(NULL, INITIALIZED);
    return wait_for_event(set, out, milliseconds);
}

int nvmlEventSetWait_v2(struct event_set *set, struct event *out, uint milliseconds)
{
    ENTER_AS(NULL, INITIALIZED);
    return wait_for_event(set, out, milliseconds);
}

int nvmlEventSetFree(struct event_set *set)
{
    ENTER_AS(NULL, INITIALIZED);
    free(set);
    return OK;
}

/* ---- MIG: `instances` of a GPU lists the numbers that are taken ---- */

int nvmlDeviceIsMigDeviceHandle(Device device, uint *out)
{
    ENTER(device);
    REQUIRE(out);
    *out = device->instance >= 0;
    return OK;
}

int nvmlDeviceGetMigDeviceHandleByIndex(Device device, uint index, Device *out)
{
    uint n = 0;
    ENTER(device);
    REQUIRE(out && device->instance < 0 && index < MAX_INSTANCES);
    int code = get_rows(device, "instances", 1, &n);
    for (uint k = 0; !code && k < n; k++)
        if (cells[k] == index) {
            *out = &devices[device->gpu][1 + index];
            return OK;
        }
    return code ? code : NOT_FOUND;
}

int nvmlDeviceGetDeviceHandleFromMigDeviceHandle(Device device, Device *out)
{
    ENTER(device);
    REQUIRE(out && device->instance >= 0);
    *out = &devices[device->gpu][0];
    return OK;
}

struct attributes { uint counts[8]; u64 memory; };

int nvmlDeviceGetAttributes_v2(Device device, struct attributes *out)
{
    ENTER(device);
    REQUIRE(out);
    int code = get_numbers(device, "attributes", 9);
    for (int k = 0; !code && k < 8; k++)
        out->counts[k] = cells[k];
    if (!code)
        out->memory = cells[8];
    return code;
}

/* ---- GPM: `gpm_metric.ID` of a GPU, `gpm_metric.GPU INSTANCE.ID` of a part of it; values as they are at the second
 * sample ---- */

struct gpm_support { uint version, supported; };
struct gpm_sample { Device device; long gpu_instance; int taken; };
struct gpm_metric { uint id; int code; double value; const char *short_name, *long_name, *unit; };
struct gpm_metrics { uint version, count; struct gpm_sample *first, *second; struct gpm_metric metrics[]; };

int nvmlGpmQueryDeviceSupport(Device device, struct gpm_support *out)
{
    ENTER(device);
    REQUIRE(out);
    if (out->version != 1)
        return VERSION_MISMATCH;
    out->supported = number_or(&devices[device->gpu][0], "gpm", 0);
    return OK;
}

int nvmlGpmSampleAlloc(struct gpm_sample **out)
{
    ENTER_AS(NULL, INITIALIZED);
    REQUIRE(out);
    *out = calloc(1, sizeof **out);
    return *out ? OK : MEMORY_ERROR;
}

int nvmlGpmSampleFree(struct gpm_sample *sample)
{
    ENTER_AS(NULL, INITIALIZED);
    free(sample);
    return OK;
}

static int take_gpm_sample(Device device, long gpu_instance, struct gpm_sample *sample)
{
    REQUIRE(sample);
    if (device->instance >= 0 || !number_or(device, "gpm", 0))
        return NOT_SUPPORTED;
    *sample = (struct gpm_sample){device, gpu_instance, 1};
    return OK;
}

int nvmlGpmSampleGet(Device device, struct gpm_sample *sample)
{
    ENTER(device);
    return take_gpm_sample(device, -1, sample);
}

int nvmlGpmMigSampleGet(Device device, uint gpu_instance, struct gpm_sample *sample)
{
    ENTER(device);
    return take_gpm_sample(device, gpu_instance, sample);
}

int nvmlGpmMetricsGet(struct gpm_metrics *out)
{
    ENTER_AS(NULL, INITIALIZED);
    REQUIRE(out && out->count <= 477 && out->first && out->second && out->first->taken && out->second->taken);
    REQUIRE(out->first->device == out->second->device && out->first->gpu_instance == out->second->gpu_instance);
    if (out->version != 1)
        return VERSION_MISMATCH;
    for (uint k = 0; k < out->count; k++) {
        char key[64];
        struct gpm_metric *metric = &out->metrics[k];
        if (out->first->gpu_instance < 0)
            snprintf(key, sizeof key, "gpm_metric.%u", metric->id);
        else
            snprintf(key, sizeof key, "gpm_metric.%ld.%u", out->first->gpu_instance, metric->id);
        const char *value = value_of(out->first->device, key);
        metric->code = !value ? NOT_SUPPORTED : *value == '!' ? atoi(value + 1) : OK;
        metric->value = metric->code ? 0 : atof(value);
    }
    return OK;
}
