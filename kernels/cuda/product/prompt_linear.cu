// prompt_linear.cu - products of prompts that prompt_linear.cuh finishes, by the tile that dispatch.h names.
#include "prompt_linear.cuh"

template <class T, int BITS, class Out> static void choose_broad(const broad_job<Out> &job) {
    switch (broad_of(job.in.w, job.n_rows)) {
    case BROAD_2_256: return launch_broad<T, BITS, 2, 256>(job);
    case BROAD_2_128: return launch_broad<T, BITS, 2, 128>(job);
    case BROAD_2_64: return launch_broad<T, BITS, 2, 64>(job);
    case BROAD_1_64: return launch_broad<T, BITS, 1, 64>(job);
    default: return launch_broad<T, BITS, 1, 32>(job);
    }
}
template <class Out>
static void run_broad(const struct cuda_matrix *w, const void *x, const Out &out, uint32_t n_rows, void *stream) {
    assert(n_rows > 0 && w->dtype != CUDA_F32 && on_16_bytes(w->data, x, w->scales));
    const broad_job<Out> job = {{w, x}, out, cuda_pad16(w->cols) / 16, n_rows, (cudaStream_t)stream};
    if (w->dtype == CUDA_F16)
        FOR_BITS(w, (choose_broad<__half, BITS>(job)));
    else
        FOR_BITS(w, (choose_broad<__nv_bfloat16, BITS>(job)));
}

void k_prompt_linear(const struct cuda_matrix *w, const struct cuda_normed *in, uint32_t n_rows, float *y, size_t ldy,
                     void *stream) {
    assert(ldy >= w->rows && on_16_bytes(y) && (!in->squares || in->D == w->cols));
    run_broad(w, in->act, out_plain{broad_norm(in), y, ldy, w->rows}, n_rows, stream);
}
void k_prompt_az(const struct cuda_matrix *w, const struct cuda_normed *in, uint32_t E, uint32_t n_rows, void *a_act,
                 void *z_act, void *stream) {
    assert(w->rows >= 2 * E && w->rows % 2 == 0 && on_16_bytes(a_act, z_act));
    run_broad(w, in->act, out_az{broad_norm(in), a_act, z_act, E, w->rows / 2}, n_rows, stream);
}
void k_prompt_ffn(const struct cuda_matrix *w, const struct cuda_normed *in, uint32_t n_rows, void *act, void *stream) {
    assert(w->rows % 16 == 0 && on_16_bytes(act)); // a2 and g2 by eights
    run_broad(w, in->act, out_ffn{broad_norm(in), act, w->rows / 2}, n_rows, stream);
}
void k_prompt_residual(const struct cuda_residual *r, uint32_t n_rows, void *stream) {
    assert(is_residual(r));
    run_broad(r->w, r->x, residual_of(r, true), n_rows, stream);
}
