/* What the parts of the fake libnvidia-ml.so.1 share. Environment: see library.c. */
#ifndef AMLTRAIN_FAKE_NVML
#define AMLTRAIN_FAKE_NVML

typedef int result;
enum {
    OK = 0, UNINITIALIZED = 1, INVALID = 2, NOT_SUPPORTED = 3, NOT_FOUND = 6, INSUFFICIENT_SIZE = 7,
    DRIVER_NOT_LOADED = 9, FUNCTION_NOT_FOUND = 13, GPU_IS_LOST = 15
};

#define MOST 256
#define MOST_MIG 8
#define PARTS 7  /* a split GPU gives each instance a seventh of what it has */
extern unsigned long long fake_total; /* bytes of a GPU */
#define TOTAL fake_total
extern const char *fake_name;

/* What a curve says of one GPU at one time. */
struct reading {
    double util, memory, power, temperature, clock;  /* percent, MiB, W, C, MHz */
    /* GPM: graphics engine, SM activity, SM occupancy, tensor cores, DRAM (percent), PCIe sent, received (MiB/s) */
    double gpm[7];
};

extern unsigned int fake_count;            /* GPUs of this machine */
extern unsigned int fake_migs[MOST];       /* instances of each; 0 = not split */
extern char fake_gpus[MOST];               /* a handle is an address in here */
extern char fake_instances[MOST][MOST_MIG];/* or in here */

double fake_now(void);                     /* seconds since the epoch of the curves */
double fake_epoch(void);                   /* that epoch, unix seconds */
void fake_read_curves(void);
struct reading fake_reading(int gpu, double time);
double fake_integral(int gpu, double time, double (*value)(const struct reading *)); /* since t = 0 */
int fake_parent(void *device);             /* index of the GPU of a handle, or -1 */
int fake_instance(void *device);           /* index of the instance in its GPU, or -1 */

/* Counts the call, waits the delay, and says what it must answer before its own work. */
result fake_enter(int *id, const char *function, void *device, int of_device);

#define ENTER_SYSTEM() do { \
        static int id_ = -1; \
        result code_ = fake_enter(&id_, __func__, 0, 0); \
        if (code_ != OK) return code_; \
    } while (0)
#define ENTER(device) do { \
        static int id_ = -1; \
        result code_ = fake_enter(&id_, __func__, device, 1); \
        if (code_ != OK) return code_; \
    } while (0)
/* For what an instance of a split GPU cannot tell. */
#define ENTER_WHOLE(device) do { \
        ENTER(device); \
        if (fake_instance(device) >= 0) return NOT_SUPPORTED; \
    } while (0)
#endif
