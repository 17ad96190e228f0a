/* cpu.c - which instruction set runs. Pure. */
#include "kernels/kernels.h"

#include <string.h>
#ifdef __x86_64__
#include <cpuid.h>
#endif

extern const struct cpu_ops cpu_ops_base;
#ifdef __x86_64__
extern const struct cpu_ops cpu_ops_avx2, cpu_ops_avx512;
#endif
extern const struct cpu_quant_ops cpu_quant_base;
#ifdef __x86_64__
extern const struct cpu_quant_ops cpu_quant_avx2, cpu_quant_avxvnni, cpu_quant_avx512, cpu_quant_avx512vnni;
#endif

#ifdef __x86_64__
/* The compiler's own query knows this one from GCC 14 on. */
static bool has_avxvnni(void) {
    unsigned a, b, c, d;
    return __get_cpuid_count(7, 1, &a, &b, &c, &d) && a >> 4 & 1;
}
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

const struct cpu_quant_ops *cpu_quant_find(const char *isa) {
#ifdef __x86_64__
    const bool avx2 = cpu_ops_find("avx2"), avx512 = cpu_ops_find("avx512");
    if (!strcmp(isa, "avx512vnni"))
        return avx512 && __builtin_cpu_supports("avx512vnni") ? &cpu_quant_avx512vnni : NULL;
    if (!strcmp(isa, "avx512")) return avx512 ? &cpu_quant_avx512 : NULL;
    if (!strcmp(isa, "avxvnni")) return avx2 && has_avxvnni() ? &cpu_quant_avxvnni : NULL;
    if (!strcmp(isa, "avx2")) return avx2 ? &cpu_quant_avx2 : NULL;
#endif
    return !strcmp(isa, "base") ? &cpu_quant_base : NULL;
}

const struct cpu_quant_ops *cpu_quant_best(void) {
    static const char *const best_first[] = {"avx512vnni", "avx512", "avxvnni", "avx2"};
    for (size_t i = 0; i < sizeof best_first / sizeof *best_first; i++) {
        const struct cpu_quant_ops *ops = cpu_quant_find(best_first[i]);
        if (ops) return ops;
    }
    return &cpu_quant_base;
}
