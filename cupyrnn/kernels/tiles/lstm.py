"""The LSTM's recurrence in one launch, by tensor cores; the gates are ``kernels/lstm.py``'s."""

from __future__ import annotations

KERNELS = r"""
template <typename T, bool PAIRS> struct LSTMForwardTiles {
    struct Next { Two<float> z[4]; };
    const Gate<float> gate;
    const Place& me;
    const float* z;
    T *i, *cs, *f, *o, *ci, *co, *h;
    int at[4], H;  // which quarter of z belongs to each gate
    bool peephole, clipped;
    float cell_clip;
    float state[2][2], c[2][2], bias[4][2], wci[2], wcf[2], wco[2];

    __device__ __forceinline__ int column(int k) const
    {
        return k == 0 ? at[0] : k == 1 ? at[1] : k == 2 ? at[2] : at[3];
    }
    __device__ __forceinline__ Next fetch(long long n) const
    {
        Next next;
#pragma unroll
        for (int k = 0; k < 4; ++k)
            next.z[k] = get<PAIRS>(z + n * (4 * H) + at[k] * H + me.unit, me);
        return next;
    }
    __device__ __forceinline__ Two<T> step(
        int r, const Next& next, const float (&sums)[2][4], long long n)
    {
        LSTMGates<float> g[2];
#pragma unroll
        for (int u = 0; u < 2; ++u) {
            g[u] = lstm_gates<float>(
                gate, next.z[0].v[u] + bias[0][u] + sums[u][0],
                next.z[1].v[u] + bias[1][u] + sums[u][1],
                next.z[2].v[u] + bias[2][u] + sums[u][2],
                next.z[3].v[u] + bias[3][u] + sums[u][3], c[r][u],
                peephole, wci[u], wcf[u], wco[u], clipped, cell_clip);
            c[r][u] = g[u].cs;
            state[r][u] = g[u].h;
        }
        const long long at_n = n * H + me.unit;
        put<PAIRS>(i + at_n, g[0].i, g[1].i, me);
        put<PAIRS>(cs + at_n, g[0].cs, g[1].cs, me);
        put<PAIRS>(f + at_n, g[0].f, g[1].f, me);
        put<PAIRS>(o + at_n, g[0].o, g[1].o, me);
        put<PAIRS>(ci + at_n, g[0].ci, g[1].ci, me);
        put<PAIRS>(co + at_n, g[0].co, g[1].co, me);
        return put<PAIRS>(h + at_n, g[0].h, g[1].h, me);
    }
};

template <typename T, int SLICES, int THREADS, bool PAIRS>
__global__ void __launch_bounds__(THREADS, 1) lstm_forward_tiles(
    const T* w, long long w_row, long long w_column,  // w_h [H, 4*H], read, and its strides
    const float* z,                    // [n, 4*H], read: x @ w_x
    const float* b,                    // [4*H], read: the bias, forget_bias included
    const float* wci,                  // [H], read, as the next two; all three null: no peepholes
    const float* wcf,
    const float* wco,
    float* carried,                    // [B, H], updated: h
    float* c,                          // [B, H], updated: the cell state, not rounded
    T* i, T* cs, T* f, T* o, T* ci, T* co, T* h,  // [n, H], written
    const long long* starts,           // [steps + 1], read: the first row of each step; null: s*B
    long long steps, long long B,
    long long H,
    int at_i, int at_ci, int at_f, int at_o,      // which quarter of z belongs to each gate
    bool clipped, float cell_clip,
    bool hard, float slope, float offset)
{
    const Place me(B, H);
    LSTMForwardTiles<T, PAIRS> cell = {
        {hard, slope, offset}, me, z, i, cs, f, o, ci, co, h, {at_i, at_ci, at_f, at_o}, int(H),
        wci != nullptr, clipped, cell_clip};
#pragma unroll
    for (int k = 0; k < 4; ++k) read_units(cell.bias[k], b + cell.at[k] * H, me);
    if (cell.peephole) {
        read_units(cell.wci, wci, me);
        read_units(cell.wcf, wcf, me);
        read_units(cell.wco, wco, me);
    }
    read_states(cell.c, c, me, H);
    forward_tiles<T, SLICES, 4, THREADS / 32>(
        cell, me, w, w_row, w_column, carried, Starts{starts, B}, steps, H);
    write_states(cell.c, c, me, H);
}

template <typename T, bool PAIRS> struct LSTMBackwardTiles {
    const Gate<float> gate;
    const Place& me;
    const T *i, *cs, *f, *o, *ci, *co, *cs_prev, *cs_grad, *h_grad;
    T* dz;
    int at[4], H;  // which quarter of z belongs to each gate
    bool peephole, clipped;
    float cell_clip;
    float dcs[2][2], wci[2], wcf[2], wco[2];
    Two<T> saved[2][7], given_c[2], given_h[2];
    LSTMFactors<float> k[2][2];

    __device__ __forceinline__ int column(int k) const
    {
        return k == 0 ? at[0] : k == 1 ? at[1] : k == 2 ? at[2] : at[3];
    }
    __device__ __forceinline__ void fetch(int r, long long n)
    {
        const long long e = n * H + me.unit;
        saved[r][0] = get<PAIRS>(i + e, me), saved[r][1] = get<PAIRS>(cs + e, me);
        saved[r][2] = get<PAIRS>(f + e, me), saved[r][3] = get<PAIRS>(o + e, me);
        saved[r][4] = get<PAIRS>(ci + e, me), saved[r][5] = get<PAIRS>(co + e, me);
        saved[r][6] = get<PAIRS>(cs_prev + e, me);
        // Something is read in any case: a branch for each would take more time.
        given_c[r] = get<PAIRS>((cs_grad ? cs_grad : i) + e, me);
        given_h[r] = get<PAIRS>((h_grad ? h_grad : i) + e, me);
    }
    __device__ __forceinline__ void factors(int r)
    {
#pragma unroll
        for (int u = 0; u < 2; ++u)
            k[r][u] = lstm_factors<float>(
                gate, wide(saved[r][0].v[u]), wide(saved[r][1].v[u]), wide(saved[r][2].v[u]),
                wide(saved[r][3].v[u]), wide(saved[r][4].v[u]), wide(saved[r][5].v[u]),
                wide(saved[r][6].v[u]),
                peephole, wci[u], wcf[u], wco[u], clipped, cell_clip);
    }
    __device__ __forceinline__ void deltas(
        int r, const float (&dh)[2], float (&d)[2][4], float (&past)[2], long long n)
    {
#pragma unroll
        for (int u = 0; u < 2; ++u) {
            const float of_c = cs_grad ? wide(given_c[r].v[u]) : 0.f;
            const float of_h = h_grad ? wide(given_h[r].v[u]) : 0.f;
            const LSTMGateGradients<float> g =
                lstm_gate_gradients<float>(k[r][u], dcs[r][u], of_c, dh[u] + of_h);
            dcs[r][u] = g.dcs;
            d[u][0] = g.di, d[u][1] = g.dci, d[u][2] = g.df, d[u][3] = g.d_o;
            past[u] = 0.f;
        }
#pragma unroll
        for (int c = 0; c < 4; ++c)
            put<PAIRS>(dz + n * (4 * H) + at[c] * H + me.unit, d[0][c], d[1][c], me);
    }
};

template <typename T, int SLICES, int THREADS, bool PAIRS>
__global__ void __launch_bounds__(THREADS, 1) lstm_backward_tiles(
    const T* w, long long w_row, long long w_column,  // w_h [H, 4*H], read, and its strides
    const T* i, const T* cs, const T* f, const T* o, const T* ci, const T* co,  // [n, H], read
    const T* cs_prev,                  // [n, H], read: the cell state before each step
    const T* cs_grad, const T* h_grad, // [n, H], read; null: zeros
    const float* wci,                  // [H], read, as the next two; all three null: no peepholes
    const float* wcf,
    const float* wco,
    float* dh,                         // [B, H], updated: the gradient of h from the next step
    float* dcs,                        // [B, H], updated: the gradient of cs from the next step
    T* dz,                             // [n, 4*H], written
    const long long* starts,           // [steps + 1], read: the first row of each step; null: s*B
    long long steps, long long B,
    long long H,
    int at_i, int at_ci, int at_f, int at_o,
    bool clipped, float cell_clip,
    bool hard, float slope, float offset)
{
    const Place me(B, H);
    LSTMBackwardTiles<T, PAIRS> cell = {
        {hard, slope, offset}, me, i, cs, f, o, ci, co, cs_prev, cs_grad, h_grad, dz,
        {at_i, at_ci, at_f, at_o}, int(H), wci != nullptr, clipped, cell_clip};
    if (cell.peephole) {
        read_units(cell.wci, wci, me);
        read_units(cell.wcf, wcf, me);
        read_units(cell.wco, wco, me);
    }
    read_states(cell.dcs, dcs, me, H);
    backward_tiles<T, SLICES, 4, THREADS / 32>(
        cell, me, w, w_row, w_column, dh, Starts{starts, B}, steps, H);
    write_states(cell.dcs, dcs, me, H);
}
"""
