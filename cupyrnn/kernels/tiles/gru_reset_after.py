"""The recurrence of the GRU that resets after the product, in one launch, by tensor cores."""

from __future__ import annotations

KERNELS = r"""
template <typename T, bool PAIRS> struct GRUResetAfterForwardTiles {
    struct Next { Two<float> z[3]; };
    const Gate<float> gate;
    const Place& me;
    const float* z;
    T *r, *u, *c, *hc, *h;
    int H;
    float state[2][2], bias[3][2], b_hc[2];

    // Columns hc, r, u.
    __device__ __forceinline__ int column(int k) const { return k; }
    __device__ __forceinline__ Next fetch(long long n) const
    {
        Next next;
#pragma unroll
        for (int k = 0; k < 3; ++k)
            next.z[k] = get<PAIRS>(z + n * (3 * H) + k * H + me.unit, me);
        return next;
    }
    __device__ __forceinline__ Two<T> step(
        int row, const Next& next, const float (&sums)[2][3], long long n)
    {
        GRUResetAfterGates<float> g[2];
#pragma unroll
        for (int k = 0; k < 2; ++k) {
            g[k] = gru_reset_after_gates<float>(
                gate, next.z[0].v[k] + sums[k][1] + bias[0][k],
                next.z[1].v[k] + sums[k][2] + bias[1][k],
                next.z[2].v[k] + bias[2][k], sums[k][0] + b_hc[k], state[row][k]);
            state[row][k] = g[k].h;
        }
        const long long at = n * H + me.unit;
        put<PAIRS>(r + at, g[0].r, g[1].r, me);
        put<PAIRS>(u + at, g[0].u, g[1].u, me);
        put<PAIRS>(c + at, g[0].c, g[1].c, me);
        put<PAIRS>(hc + at, g[0].hc, g[1].hc, me);
        return put<PAIRS>(h + at, g[0].h, g[1].h, me);
    }
};

template <typename T, int SLICES, int THREADS, bool PAIRS>
__global__ void __launch_bounds__(THREADS, 1)
gru_reset_after_forward_tiles(
    const T* w, long long w_row, long long w_column,  // w_h [H, 3*H], read, columns hc, r, u
    const float* z,                    // [n, 3*H], read: x @ w_x, columns r, u, c
    const float* b,                    // [3*H], read
    const float* b_hc,                 // [H], read
    float* carried,                    // [B, H], updated: the state, not rounded
    T* r, T* u, T* c, T* hc, T* h,     // [n, H], written
    const long long* starts,           // [steps + 1], read: the first row of each step; null: s*B
    long long steps, long long B,
    long long H,
    bool hard, float slope, float offset)
{
    const Place me(B, H);
    GRUResetAfterForwardTiles<T, PAIRS> cell = {
        {hard, slope, offset}, me, z, r, u, c, hc, h, int(H)};
#pragma unroll
    for (int k = 0; k < 3; ++k) read_units(cell.bias[k], b + k * H, me);
    read_units(cell.b_hc, b_hc, me);
    forward_tiles<T, SLICES, 3, THREADS / 32>(
        cell, me, w, w_row, w_column, carried, Starts{starts, B}, steps, H);
}

template <typename T, bool PAIRS> struct GRUResetAfterBackwardTiles {
    const Gate<float> gate;
    const Place& me;
    const T *r, *u, *c, *hc, *h_prev, *h_grad;
    T* dz;
    int H;
    Two<T> saved[2][5], given[2];
    float passed[2][2];
    GRUResetAfterGateGradients<float> k[2][2];  // of a gradient of one

    __device__ __forceinline__ int column(int n) const { return n; }
    __device__ __forceinline__ void fetch(int row, long long n)
    {
        const long long e = n * H + me.unit;
        saved[row][0] = get<PAIRS>(r + e, me), saved[row][1] = get<PAIRS>(u + e, me);
        saved[row][2] = get<PAIRS>(c + e, me), saved[row][3] = get<PAIRS>(hc + e, me);
        saved[row][4] = get<PAIRS>(h_prev + e, me);
        // Something is read in any case: a branch would take more time.
        given[row] = get<PAIRS>((h_grad ? h_grad : r) + e, me);
    }
    __device__ __forceinline__ void factors(int row)
    {
#pragma unroll
        for (int n = 0; n < 2; ++n) {
            const float u_ = wide(saved[row][1].v[n]);
            k[row][n] = gru_reset_after_gate_gradients<float>(
                gate, wide(saved[row][0].v[n]), u_, wide(saved[row][2].v[n]),
                wide(saved[row][3].v[n]), wide(saved[row][4].v[n]), 1.f);
            passed[row][n] = u_;
        }
    }
    __device__ __forceinline__ void deltas(
        int row, const float (&dh)[2], float (&d)[2][3], float (&past)[2], long long n)
    {
        float d_c[2];
#pragma unroll
        for (int m = 0; m < 2; ++m) {
            const float total = dh[m] + (h_grad ? wide(given[row].v[m]) : 0.f);
            d[m][0] = total * k[row][m].dhc;
            d[m][1] = total * k[row][m].dr;
            d[m][2] = total * k[row][m].du;
            d_c[m] = total * k[row][m].dc;
            past[m] = total * passed[row][m];
        }
        T* const to = dz + n * (4 * H) + me.unit;
#pragma unroll
        for (int m = 0; m < 3; ++m) put<PAIRS>(to + m * H, d[0][m], d[1][m], me);
        put<PAIRS>(to + 3 * H, d_c[0], d_c[1], me);
    }
};

template <typename T, int SLICES, int THREADS, bool PAIRS>
__global__ void __launch_bounds__(THREADS, 1)
gru_reset_after_backward_tiles(
    const T* w, long long w_row, long long w_column,  // w_h [H, 3*H], read, columns hc, r, u
    const T* r, const T* u, const T* c, const T* hc,  // [n, H], read
    const T* h_prev,                   // [n, H], read: the state before each step
    const T* h_grad,                   // [n, H], read; null: zeros
    float* dh,                         // [B, H], updated: the gradient of h from the next step
    T* dz,                             // [n, 4*H], written: columns hc, r, u, c
    const long long* starts,           // [steps + 1], read: the first row of each step; null: s*B
    long long steps, long long B,
    long long H,
    bool hard, float slope, float offset)
{
    const Place me(B, H);
    GRUResetAfterBackwardTiles<T, PAIRS> cell = {
        {hard, slope, offset}, me, r, u, c, hc, h_prev, h_grad, dz, int(H)};
    backward_tiles<T, SLICES, 3, THREADS / 32>(
        cell, me, w, w_row, w_column, dh, Starts{starts, B}, steps, H);
}
"""
