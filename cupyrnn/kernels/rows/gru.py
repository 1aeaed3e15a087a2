"""The recurrence of the GRU that resets before the product, in one launch: two products a step."""

from __future__ import annotations

from . import common

KERNELS = r"""
template <
    typename T, int SPLIT, int SLICE, int KEPT, int SLICE_C, int KEPT_C, int ROWS, int THREADS>
__global__ void __launch_bounds__(THREADS, 1) gru_forward_rows(
    const T* w_ru, long long ru_row, long long ru_column,  // [H, 2*H], read, and its strides
    const T* w_c, long long c_row, long long c_column,     // [H, H], read, and its strides
    const typename Acc<T>::type* z_ru, // [n, 2*H], read: x @ w_ru
    const typename Acc<T>::type* z_c,  // [n, H], read: x @ w_c
    const typename Acc<T>::type* b_ru, // [2*H], read
    const typename Acc<T>::type* b_c,  // [H], read
    typename Acc<T>::type* carried,    // [B, H], updated: the state, not rounded
    T* r, T* u, T* c, T* h,            // [n, H], written
    const long long* starts_,          // [steps + 1], read: the first row of each step; null: s*B
    long long steps, long long B,
    long long H,
    bool hard, typename Acc<T>::real slope, typename Acc<T>::real offset)
{
    typedef typename Acc<T>::type A;
    typedef Matrix<A, SPLIT, SLICE, KEPT, 1, 2, THREADS> Gates;
    typedef Matrix<A, SPLIT, SLICE_C, KEPT_C, 1, 1, THREADS> Output;
    static_assert(SLICE == SLICE_C, "both multiply a state");
    const int SIZE = ROWS * Gates::LENGTH;
    __shared__ Pack<A> memory[2 * SIZE / Gates::P];
    A *const state = memory[0].v, *const reset = state + SIZE;  // [ROWS][LENGTH]: h_prev, h_prev*r
    const Seat<SPLIT, 1, ROWS> me(B, H);
    const Gate<A> gate = {hard, slope, offset};
    const Starts starts = {starts_, B};

    Output output;
    output.load(me.lane, shared_packs<A>() + Gates::SHARED, [&](int k, int, int) -> A {
        return k < H && me.unit < H ? wide(w_c[k * c_row + me.unit * c_column]) : A(0);
    });
    Gates gates;
    gates.load(me.lane, shared_packs<A>(), [&](int k, int, int n) -> A {
        if (k >= H || me.unit >= H) return A(0);
        return wide(w_ru[k * ru_row + (n * H + me.unit) * ru_column]);
    });
    A bias[3] = {A(0), A(0), A(0)};
    if (me.unit < H) bias[0] = b_ru[me.unit], bias[1] = b_ru[H + me.unit], bias[2] = b_c[me.unit];
    clear(state, 2 * SIZE);
    __syncthreads();
    const int mine = me.slot * Gates::LENGTH + Gates::place(me.unit);
    A h_prev = A(0), next[3] = {A(0), A(0), A(0)};
    if (me.owner) {
        h_prev = carried[me.row * H + me.unit];
        state[mine] = rounded<T>(h_prev);
    }
    long long from = starts[0], to = starts[1];
    bool active = me.owner && from + me.row < to;
    auto fetch = [&]() {
        const long long n = from + me.row;
        next[0] = z_ru[n * 2 * H + me.unit];
        next[1] = z_ru[(n * 2 + 1) * H + me.unit];
        next[2] = z_c[n * H + me.unit];
    };
    if (active) fetch();
    __syncthreads();
    for (int s = 0; s < int(steps) && from + me.first < to; ++s) {
        const bool now = active;
        const long long at = (from + me.row) * H + me.unit;
        const A z[3] = {next[0], next[1], next[2]};
        if (s + 1 < steps) {
            from = to;
            to = starts[s + 2];
            active = me.owner && from + me.row < to;
            if (active) fetch();
        }
        A sums[2], sum[1];
        gates.template product<ROWS>(state, me.lane, sums);
        A u_ = A(0);
        if (now) {
            const A r_ = gate_of(gate, z[0] + sums[0] + bias[0]);
            u_ = gate_of(gate, z[1] + sums[1] + bias[1]);
            store(r + at, r_);
            store(u + at, u_);
            reset[mine] = rounded<T>(r_ * h_prev);
        }
        __syncthreads();
        output.template product<ROWS>(reset, me.lane, sum);
        if (now) {
            const A c_ = tanh_(z[2] + sum[0] + bias[2]);
            h_prev = gru_output(u_, c_, h_prev);
            store(c + at, c_);
            store(h + at, h_prev);
            state[mine] = rounded<T>(h_prev);
        }
        __syncthreads();
    }
    if (me.owner) carried[me.row * H + me.unit] = h_prev;
}

template <
    typename T, int SPLIT, int SLICE_C, int KEPT_C, int SLICE, int KEPT, int ROWS, int THREADS>
__global__ void __launch_bounds__(THREADS, 1) gru_backward_rows(
    const T* w_c, long long c_row, long long c_column,     // [H, H], read, and its strides
    const T* w_ru, long long ru_row, long long ru_column,  // [H, 2*H], read, and its strides
    const T* r, const T* u, const T* c,  // [n, H], read
    const T* h_prev,                   // [n, H], read: the state before each step
    const T* d_h,                      // [n, H], read; null: zeros
    typename Acc<T>::type* dh,         // [B, H], updated: the gradient of h from the next step
    T* d_ru,                           // [n, 2*H], written
    T* d_c,                            // [n, H], written
    const long long* starts_,          // [steps + 1], read: the first row of each step; null: s*B
    long long steps, long long B,
    long long H,
    bool hard, typename Acc<T>::real slope, typename Acc<T>::real offset)
{
    typedef typename Acc<T>::type A;
    typedef Matrix<A, SPLIT, SLICE_C, KEPT_C, 4, 1, THREADS> Output;
    typedef Matrix<A, SPLIT, SLICE, KEPT, 4, 1, THREADS> Gates;
    const int SIZE_C = ROWS * Output::LENGTH, SIZE = ROWS * Gates::LENGTH;
    __shared__ Pack<A> memory[(SIZE_C + SIZE) / Gates::P];
    A *const of_c = memory[0].v, *const of_ru = of_c + SIZE_C;  // [ROWS][LENGTH]: d_c, d_r and d_u
    const Seat<SPLIT, 4, ROWS> me(B, H);
    const Gate<A> gate = {hard, slope, offset};
    const Starts starts = {starts_, B};

    Output output;
    output.load(me.lane, shared_packs<A>(), [&](int k, int n, int) -> A {
        const int unit = me.group * 4 + n;
        return k < H && unit < H ? wide(w_c[unit * c_row + k * c_column]) : A(0);
    });
    Gates gates;  // Its vector has the two deltas of a unit together.
    gates.load(me.lane, shared_packs<A>() + Output::SHARED, [&](int k, int n, int) -> A {
        const int unit = me.group * 4 + n, column = k / 2;
        if (column >= H || unit >= H) return A(0);
        return wide(w_ru[unit * ru_row + (k % 2 * H + column) * ru_column]);
    });
    clear(of_c, SIZE_C + SIZE);
    const int mine_c = me.slot * Output::LENGTH + Output::place(me.unit);
    A* const mine = of_ru + me.slot * Gates::LENGTH;
    A grad = me.owner ? dh[me.row * H + me.unit] : A(0);
    A r_ = A(0), u_ = A(0), c_ = A(0), before = A(0), given = A(0);
    long long to = starts[steps], from = starts[steps - 1];
    bool active = me.owner && from + me.row < to;
    auto fetch = [&]() {
        const long long e = (from + me.row) * H + me.unit;
        r_ = wide(r[e]), u_ = wide(u[e]), c_ = wide(c[e]), before = wide(h_prev[e]);
        given = d_h ? wide(d_h[e]) : A(0);
    };
    if (active) fetch();
    __syncthreads();
    for (int s = int(steps) - 1; s >= 0; --s) {
        const bool now = active, any = from + me.first < to;
        const long long n = from + me.row;
        A total = A(0), d_u = A(0), sum[1];
        const A r_now = r_, u_now = u_, h_now = before;
        if (now) {
            total = grad + given;
            const GRUGateGradients<A> g = gru_gate_gradients<A>(gate, u_, c_, before, total);
            d_u = g.d_u;
            store(d_c + n * H + me.unit, g.d_c);
            of_c[mine_c] = rounded<T>(g.d_c);
        }
        if (s > 0) {
            to = from;
            from = starts[s - 1];
            active = me.owner && from + me.row < to;
            if (active) fetch();
        }
        if (!any) continue;
        __syncthreads();
        output.template product<ROWS>(of_c, me.lane, sum);
        if (now) {
            const A d_r = gru_reset_gradient(gate, r_now, h_now, sum[0]);
            grad = total * u_now + sum[0] * r_now;
            store(d_ru + n * 2 * H + me.unit, d_r);
            store(d_ru + (n * 2 + 1) * H + me.unit, d_u);
            mine[Gates::place(2 * me.unit)] = rounded<T>(d_r);
            mine[Gates::place(2 * me.unit + 1)] = rounded<T>(d_u);
        }
        __syncthreads();
        gates.template product<ROWS>(of_ru, me.lane, sum);
        if (now) grad += sum[0];
    }
    if (me.owner) dh[me.row * H + me.unit] = grad;
}
"""

FORWARD = common.Size(units=1, vectors=(1, 1), columns=(2, 1))
BACKWARD = common.Size(units=4, vectors=(1, 2), columns=(1, 1))
