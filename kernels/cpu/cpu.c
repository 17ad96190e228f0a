/* cpu.c - which instruction set runs. Pure. */
#include "kernels/kernels.h"

#include <string.h>

extern const struct cpu_ops cpu_ops_base;
#ifdef __x86_64__
extern const struct cpu_ops cpu_ops_avx2, cpu_ops_avx512;
#endif

const struct cpu_ops *cpu_ops_find(const char *isa) {
#ifdef __x86_64__
    if (!strcmp(isa, "avx512"))
        return __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
                       __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512dq")
                   ? &cpu_ops_avx512
                   : NULL;
    if (!strcmp(isa, "avx2"))
        return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") ? &cpu_ops_avx2 : NULL;
#endif
    return !strcmp(isa, "base") ? &cpu_ops_base : NULL;
}

const struct cpu_ops *cpu_ops_best(void) {
    const struct cpu_ops *ops = cpu_ops_find("avx512");
    if (!ops) ops = cpu_ops_find("avx2");
    return ops ? ops : &cpu_ops_base;
}
