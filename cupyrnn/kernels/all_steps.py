"""
All time steps in one launch: the loops over them, whoever multiplies and whatever the cell is.

A kernel of ``rows`` or ``grid`` makes a seat and products, and calls one of these loops.
A thread has some sequences by some units of its own, as its seat says: their states stay in its
registers, and what a product multiplies goes through memory that all who meet share.
"""

from __future__ import annotations

from . import cell

# A seat, for B sequences of H units, has
#
#   int OWN_ROWS, OWN_UNITS     of a thread
#   bool BRANCHES               whether one is worth it where a sequence or an array is missing:
#                               else its registers take more time than what it spares
#   int first, row, unit        the first sequence of those that meet, the thread's, its first unit
#   int units, active(from, to) how many of its units there are, and how many of its sequences in a
#                               step whose rows these are
#   get(from), put(to, v)       numbers of its units, side by side in a row
#
# and products, of which each multiplies one of two vectors, by turns,
#
#   N, held(weight)             what matrices are held in, and a weight as such
#   load(value)                 the matrices; value(product, k, unit, column) is what number k of a
#                               vector is multiplied by for a column of a unit
#   begin()                     has zeros in all vectors
#   put<COUNT>(product, turn, r, v)
#                               leaves the numbers v[UNITS][COUNT] of sequence r in such a vector
#   meet()                      waits until all have left theirs
#   multiply(product, turn, rows, sums)
#                               makes sums[WIDTH][UNITS * ROWS], by unit and then by sequence, in
#                               a step that has so many rows
SOURCE = (
    cell.SOURCE
    + r"""
// Numbers of neighboring units.
template <typename V, int N> struct alignas(N * sizeof(V)) Numbers { V v[N]; };

// Does something with each of so many of a thread's sequences, and with each of its units.
template <typename Seat, typename Something>
__device__ __forceinline__ void each_of(int count, const Seat& me, Something something)
{
#pragma unroll
    for (int r = 0; r < Seat::OWN_ROWS; ++r)
#pragma unroll
        for (int u = 0; u < Seat::OWN_UNITS; ++u)
            if (r < count && u < me.units) something(r, u);
}

// The number k of a struct of each unit.
template <typename A, typename S, int UNITS>
__device__ __forceinline__ Numbers<A, UNITS> of_units(S (&structs)[UNITS], int k)
{
    Numbers<A, UNITS> all;
#pragma unroll
    for (int u = 0; u < UNITS; ++u) all.v[u] = array_of<A>(structs[u])[k];
    return all;
}

// A number of a state as it is computed with, or as it is stored; zero where both are null.
template <typename A, typename T>
__device__ __forceinline__ A number_at(const A* computed, const T* given, long long n)
{
    return given ? A(wide(given[n])) : computed ? computed[n] : A(0.f);
}
// Leaves it in each that is not null.
template <typename A, typename T>
__device__ __forceinline__ void leave_at(A* computed, T* given, long long n, A v)
{
    if (computed) computed[n] = v;
    if (given) store(given + n, v);
}

template <template <typename> class Cell, typename T, typename Seat, typename Products>
__device__ __forceinline__ void all_steps(
    const Cell<typename Acc<T>::type>& cell, const Forward<Cell, T> arrays, const Steps& at,
    const Seat& me, Products& products)
{
    typedef typename Acc<T>::type A;
    typedef Cell<A> C;
    typedef typename Products::N N;
    const int R = Seat::OWN_ROWS, U = Seat::OWN_UNITS, LAST = C::PRODUCTS - 1;
    const int H = int(at.H), steps = int(at.steps);
    const int sequences = me.active(0, at.B);
    products.load([&](auto product, int k, int unit, int c) -> N {
        const Weights<T> w = arrays.w[product.NUMBER];
        if (k >= H || unit >= H) return N(0.f);
        return products.held(w.w[k * w.row + (weight_of(cell, c, 0) * H + unit) * w.column]);
    });
    typename C::Unit units[U] = {};
#pragma unroll
    for (int u = 0; u < U; ++u) if (u < me.units) units[u] = cell.unit(me.unit + u, H);
    products.begin();
    __syncthreads();
    auto own = [&](int r, int u) { return (me.row + r) * (long long)H + me.unit + u; };
    typename C::State states[R][U] = {};
    each_of(sequences, me, [&](int r, int u) {
#pragma unroll
        for (int k = 0; k < C::CARRIED; ++k)
            array_of<A>(states[r][u])[k] =
                number_at<A>(arrays.states[k], arrays.first[k], own(r, u));
    });
#pragma unroll
    for (int r = 0; r < R; ++r)
        if (r < sequences) {
            A made[U][1];
#pragma unroll
            for (int u = 0; u < U; ++u) made[u][0] = states[r][u].h;
            products.template put<1>(Product<0>(), 0, r, made);
        }
    long long from = at[0], to = at.end(0);
    int active = me.active(from, to);
    struct Next { Numbers<A, U> z[R][C::width(0) + (LAST == 1 ? C::width(1) : 0)]; } next = {};
    auto fetch = [&]() {
#pragma unroll
        for (int r = 0; r < R; ++r)
            if (r < active)
#pragma unroll
                for (int p = 0; p < C::PRODUCTS; ++p)
#pragma unroll
                    for (int k = 0; k < C::width(p); ++k)
                        next.z[r][p * C::width(0) + k] = me.get(
                            arrays.z[p] + (from + me.row + r) * (C::width(p) * H)
                                + me.unit + cell.column(k) * H);
    };
    fetch();
    T* const output = arrays.output ? arrays.output + me.unit : nullptr;
    products.meet();
    // All is done when the first sequence, the longest, is.
    for (int s = 0; s < steps && from + me.first < to; ++s) {
        const int now = active;
        const long long n = from + me.row, rows = to - from;
        const Next current = next;
        if (s + 1 < steps) {  // What comes next is on its way while this step is computed.
            from = at[s + 1];
            to = at.end(s + 1);
            active = me.active(from, to);
            fetch();
        }
        typename C::Saved saved[R][U];
        auto behind = [&](auto product) {
            constexpr int p = decltype(product)::NUMBER, WIDTH = C::width(p);
            const int turn = LAST == 1 ? p : s & 1;
            A sums[WIDTH][U * R];
            products.multiply(product, turn, rows, sums);
#pragma unroll
            for (int r = 0; r < R; ++r)
                if (r < now) {
                    A made[U][1];
#pragma unroll
                    for (int u = 0; u < U; ++u) {
                        A z[WIDTH], of_unit[WIDTH];
#pragma unroll
                        for (int c = 0; c < WIDTH; ++c)
                            z[c] = current.z[r][p * C::width(0) + c].v[u],
                            of_unit[c] = sums[c][u * R + r];
                        made[u][0] = cell.forward(
                            product, units[u], z, of_unit, states[r][u], saved[r][u]);
                    }
                    products.template put<1>(Product<0>(), turn ^ 1, r, made);
                    const long long e = (n + r) * H + me.unit;
#pragma unroll
                    for (int k = C::saved_before(p); k < C::saved_before(p + 1); ++k)
                        me.put(arrays.saved[k] + e, of_units<A>(saved[r], k));
                    if (p == LAST && output)
                        me.put(output + (n + r) * arrays.output_row,
                               of_units<A>(saved[r], C::SAVED - 1));
                }
            products.meet();
        };
        behind(Product<0>());
        if constexpr (LAST == 1) behind(Product<1>());
    }
    each_of(sequences, me, [&](int r, int u) {
#pragma unroll
        for (int k = 0; k < C::CARRIED; ++k)
            leave_at(arrays.states[k], arrays.last[k], own(r, u), array_of<A>(states[r][u])[k]);
    });
}

template <template <typename> class Cell, typename T, typename Seat, typename Products>
__device__ __forceinline__ void all_steps(
    const Cell<typename Acc<T>::type>& cell, const Backward<Cell, T> arrays, const Steps& at,
    const Seat& me, Products& products)
{
    typedef typename Acc<T>::type A;
    typedef Cell<A> C;
    typedef typename Products::N N;
    const int R = Seat::OWN_ROWS, U = Seat::OWN_UNITS, LAST = C::PRODUCTS - 1;
    const int H = int(at.H), steps = int(at.steps);
    const int sequences = me.active(0, at.B);
    products.load([&](auto product, int k, int unit, int) -> N {
        constexpr int WIDTH = C::width(decltype(product)::NUMBER);
        const Weights<T> w = arrays.w[product.NUMBER];
        const int column = k / WIDTH;
        if (column >= H || unit >= H) return N(0.f);
        const int delta = weight_of(cell, k % WIDTH, 0) * H + column;
        return products.held(w.w[unit * w.row + delta * w.column]);
    });
    typename C::Unit units[U] = {};
#pragma unroll
    for (int u = 0; u < U; ++u) if (u < me.units) units[u] = cell.unit(me.unit + u, H);
    products.begin();
    auto own = [&](int r, int u) { return (me.row + r) * (long long)H + me.unit + u; };
    typename C::Gradients gradients[R][U] = {};
    each_of(sequences, me, [&](int r, int u) {
#pragma unroll
        for (int k = 0; k < C::GRADIENTS; ++k)
            array_of<A>(gradients[r][u])[k] =
                number_at<A>(arrays.gradients[k], arrays.last[k], own(r, u));
    });
    const long long given_row = arrays.given[0] && arrays.given_row ? arrays.given_row : H;
    // How many bytes the states before the first step are behind those after each step: to choose
    // between two numbers costs less than between two pointers.
    long long start[C::READ];
#pragma unroll
    for (int k = 0; k < C::READ; ++k)
        start[k] = (long long)arrays.first[k] - (long long)arrays.read[k];
    int step = steps - 1;
    long long to = at.end(step), from = at[step];
    int active = me.active(from, to);
    Numbers<T, U> read[R][C::READ] = {}, given[R][C::GIVEN] = {};
    typename C::Factors factors[R][U];
    auto fetch = [&]() {
#pragma unroll
        for (int r = 0; r < R; ++r)
            if (r < active) {
                const long long row = from + me.row + r, e = row * H + me.unit;
#pragma unroll
                for (int k = 0; k < C::READ; ++k) {
                    const char* numbers = reinterpret_cast<const char*>(arrays.read[k] + e);
                    if (k >= C::READ - before_of<C>(0) && arrays.first[k])
                        numbers += step ? (at[step - 1] - from) * H * int(sizeof(T))
                                        : start[k] - from * H * int(sizeof(T));
                    read[r][k] = me.get(reinterpret_cast<const T*>(numbers));
                }
#pragma unroll
                for (int k = 0; k < C::GIVEN; ++k)
                    if (!Seat::BRANCHES || arrays.given[k])
                        given[r][k] = me.get(
                            (arrays.given[k] ? arrays.given[k] : arrays.read[0])
                                + (k ? e : row * given_row + me.unit));
            }
    };
    auto make_factors = [&]() {
#pragma unroll
        for (int r = 0; r < R; ++r)
#pragma unroll
            for (int u = 0; u < U; ++u)
                if (!Seat::BRANCHES || r < active) {
                    typename C::Read of_unit;
#pragma unroll
                    for (int k = 0; k < C::READ; ++k)
                        array_of<A>(of_unit)[k] = wide(read[r][k].v[u]);
                    factors[r][u] = cell.factors(units[u], of_unit);
                }
    };
    fetch();
    make_factors();
    __syncthreads();
    for (int s = steps - 1; s >= 0; --s) {
        const int now = active;
        const bool any = from + me.first < to;  // of the sequences that meet
        const long long n = from + me.row, rows = to - from;
        A past[R][U];
        // dh: the gradient of the next product, without the one that the caller passes.
        auto before = [&](auto product, auto dh) {
            constexpr int p = decltype(product)::NUMBER;
#pragma unroll
            for (int r = 0; r < R; ++r)
                if (r < now) {
                    A d[U][C::deltas(p)];
#pragma unroll
                    for (int u = 0; u < U; ++u) {
                        A of_unit[C::GIVEN], sum = dh(r, u);
#pragma unroll
                        for (int k = 0; k < C::GIVEN; ++k)
                            of_unit[k] = Seat::BRANCHES || arrays.given[k]
                                ? wide(given[r][k].v[u]) : A(0);
                        if (p == LAST) sum += of_unit[0];
                        past[r][u] = cell.backward(
                            product, factors[r][u], sum, of_unit, gradients[r][u], d[u]);
                    }
#pragma unroll
                    for (int k = 0; k < C::deltas(p); ++k)
                        me.put(
                            arrays.deltas[p] + (n + r) * (C::deltas(p) * H) + me.unit
                                + place_of(cell, k, 0) * H,
                            of_units<A>(d, k));
                    products.template put<C::width(p)>(product, LAST == 1 ? p : s & 1, r, d);
                }
        };
        before(Product<LAST>(), [&](int r, int u) { return gradients[r][u].h; });
        if (s > 0) {
            step = s - 1;
            to = at.end(step);
            from = at[step];
            active = me.active(from, to);
            fetch();
        }
        if (any) {
            products.meet();
            A sums[1][U * R];
            if constexpr (LAST == 1) {
                products.multiply(Product<1>(), 1, rows, sums);
                before(Product<0>(), [&](int r, int u) { return sums[0][u * R + r]; });
                products.meet();
            }
            products.multiply(Product<0>(), LAST == 1 ? 0 : s & 1, rows, sums);
#pragma unroll
            for (int r = 0; r < R; ++r)
#pragma unroll
                for (int u = 0; u < U; ++u)
                    if (r < now) gradients[r][u].h = past[r][u] + sums[0][u * R + r];
        }
        // Behind the product, off the way from step to step.
        make_factors();
    }
    each_of(sequences, me, [&](int r, int u) {
#pragma unroll
        for (int k = 0; k < C::GRADIENTS; ++k)
            leave_at(arrays.gradients[k], arrays.made[k], own(r, u),
                     array_of<A>(gradients[r][u])[k]);
    });
}
"""
)
