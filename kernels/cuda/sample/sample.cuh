// sample.cuh - the marks of a slot's tokens, which sample.cu reads and slots.cu makes.
#pragma once
#include "kernels/cuda/common.cuh"

using u64 = unsigned long long;

constexpr uint32_t MARK_END = 1u << 31, MARK_SEEN = 1u << 30, MARK_WAIT = 1u << 29, MARK_COUNT = MARK_WAIT - 1;
