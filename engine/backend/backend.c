/* backend.c - finds the backend for a device string. The CUDA one is a shared object beside the program, loaded only
 * when asked for or when "auto" looks for a GPU, so that one build runs on machines with and without one. */
#include "backend.h"
#include "engine/base/host.h"
#include "engine/model/weight_quant.h"

#include <dlfcn.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

static const struct backend_plugin *load_cuda(char *why, size_t why_bytes) {
    char path[4096 + 32];
    ssize_t n = readlink("/proc/self/exe", path, 4096);
    if (n < 0) n = 0;
    path[n] = 0;
    char *slash = strrchr(path, '/');
    snprintf(slash ? slash + 1 : path, 32, "rodimus_cuda.so");
    if (access(path, R_OK)) {
        snprintf(why, why_bytes, "this build has no CUDA part (rodimus_cuda.so is made where nvcc is installed)");
        return NULL;
    }
    void *object = dlopen(path, RTLD_NOW | RTLD_LOCAL); /* stays loaded: its statics must outlive every engine */
    if (!object) {
        snprintf(why, why_bytes, "rodimus_cuda.so does not load: %s", dlerror());
        return NULL;
    }
    const struct backend_plugin *plugin = dlsym(object, "rodimus_cuda_plugin");
    if (!plugin) snprintf(why, why_bytes, "rodimus_cuda.so is of another build");
    return plugin;
}

static const char no_gpu[] = "no GPU of compute capability 8.0 or more is here";

size_t backend_devices(char (*lines)[128], size_t max_lines) {
    char why[256];
    const struct backend_plugin *plugin = load_cuda(why, sizeof why);
    return plugin ? plugin->devices(lines, max_lines) : 0;
}

const char *backend_why_cpu(char *why, size_t why_bytes) {
    char line[1][128];
    const struct backend_plugin *plugin = load_cuda(why, why_bytes);
    if (plugin && !plugin->devices(line, 1)) snprintf(why, why_bytes, "%s", no_gpu);
    return why;
}

int backend_find(const char *device, const struct backend_ops **out, struct rod_error *err) {
    char why[256] = "", line[1][128];
    if (!strcmp(device, "null") || !strncmp(device, "null:", 5)) {
        *out = &backend_null;
        return 0;
    }
    bool wanted = !strcmp(device, "cuda") || !strncmp(device, "cuda:", 5);
    if (!wanted && strcmp(device, "auto") && strcmp(device, "cpu"))
        return rod_fail(err, ROD_EINVALID, "device '%s' is not one of auto, cpu, cuda, cuda:N", device);
    *out = &backend_cpu;
    if (!strcmp(device, "cpu")) return 0;
    const struct backend_plugin *plugin = load_cuda(why, sizeof why);
    if (plugin && !plugin->devices(line, 1))
        snprintf(why, sizeof why, "%s", no_gpu);
    else if (plugin)
        *out = plugin->ops;
    if (wanted && *out == &backend_cpu) return rod_fail(err, ROD_EUNSUPPORTED, "device '%s': %s", device, why);
    return 0;
}

void rod_cuda_note(char *note, size_t note_bytes) {
    const struct backend_plugin *plugin = load_cuda(note, note_bytes);
    char library[128];
    if (!plugin) return;
    plugin->library(library, sizeof library);
    snprintf(note, note_bytes, "rodimus_cuda.so is loaded, %s", library);
}

/* Appends the formats of weights to the device's line. */
static void device_formats(char line[128], const struct backend_ops *ops) {
    size_t n = strlen(line);
    n += (size_t)snprintf(line + n, 128 - n, "; weights fp32, fp16, bf16");
    for (int i = WEIGHT_FP8; i < WEIGHT_N_FORMATS && n < 128; i++)
        if (ops->formats >> i & 1)
            n += (size_t)snprintf(line + n, 128 - n, ", %s", weight_format_name((enum weight_format)i));
}

size_t rod_devices(char (*lines)[128], size_t max_lines) {
    char why[256];
    const struct backend_plugin *plugin = load_cuda(why, sizeof why);
    size_t n = backend_devices(lines, max_lines);
    for (size_t i = 0; i < n; i++) device_formats(lines[i], plugin->ops);
    if (n == max_lines) return n;
    snprintf(lines[n], sizeof lines[n], "cpu, %u cores", host_cpus());
    device_formats(lines[n], &backend_cpu);
    return n + 1;
}
