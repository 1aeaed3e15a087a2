"""
All time steps in one launch: the loops over them, whoever multiplies and whatever the cell is.

A kernel of ``rows`` or ``grid`` makes a seat and products, and calls one of these loops. A thread
has one unit of one sequence, as its seat says. Its states stay in its registers. What a product
multiplies goes through memory that all who meet share.
"""

from __future__ import annotations

from . import cell

# A seat, for B sequences of H units, has
#
#   int first, row, unit        the first sequence of those that meet, the thread's, its unit
#   int units                   whether the thread stores the numbers of that unit and sequence:
#                               another lane may have the same ones
#
# and products, each of one of two vectors by turns, have
#
#   N, held(weight)             what matrices are held in, and a weight as such
#   load(value)                 the matrices; value(product, k, unit, column) is what number k of a
#                               vector is multiplied by for a column of a unit
#   begin()                     has zeros in all vectors
#   put<COUNT>(product, turn, v)
#                               leaves COUNT numbers of the thread's unit in such a vector
#   meet()                      waits until all have left theirs
#   multiply(product, turn, rows, sums)
#                               makes the sums of the thread's unit, by column, in a step that has
#                               so many rows
#
# Nothing in a step branches: a thread without a sequence or a unit computes with the numbers of
# another one, and stores nothing. What others wait for comes first, what nobody waits for is stored
# behind the barrier.
#
# PLAIN: all sequences have all steps, and the cell has nothing of what it calls optional.
# ROOM: whether registers have room for what a thread without a sequence or a unit computes. Else
# there is a branch, which keeps the compiler from having more numbers in registers at once.
SOURCE = (
    cell.SOURCE
    + r"""
// A number that the compiler does not make again where it is used.
template <typename V> __device__ __forceinline__ V in_register(V v)
{
#ifndef CUDA_ON_CPU
    asm("" : "+r"(v));
#endif
    return v;
}

// Has a cell without what it calls optional.
template <typename C>
__device__ __forceinline__ auto make_plain(C& cell, int) -> decltype(cell.plain())
{
    cell.plain();
}
template <typename C> __device__ __forceinline__ void make_plain(C&, long) {}

// Number n of a state, as it is computed with or as it is stored; zero where both are null.
template <typename A, typename T>
__device__ __forceinline__ A number_at(const A* computed, const T* stored, long long n)
{
    return stored ? A(wide(stored[n])) : computed ? computed[n] : A(0.f);
}
// Leaves it in each that is not null.
template <typename A, typename T>
__device__ __forceinline__ void leave_at(A* computed, T* stored, long long n, A v)
{
    if (computed) computed[n] = v;
    if (stored) store(stored + n, v);
}

// The steps of a thread: how many its block has, and which of them are its own.
template <bool PLAIN> struct Walk {
    const Steps& at;
    int H, steps, length;  // of the block, and of the thread's sequence; 0 where there is none
    int row, unit;         // what it reads: another one's where it has none
    long long own;         // its number in a state
    bool mine;             // whether it stores it
    template <typename Seat>
    __device__ __forceinline__ Walk(const Steps& all, const Seat& me)
        : at(all), H(int(at.H)), steps(at.length(me.first)),
          length(me.row < at.B && me.unit < H ? at.length(me.row) : 0), row(length ? me.row : 0),
          unit(length ? me.unit : 0), own(me.row * (long long)H + me.unit),
          mine(me.units && me.row < at.B) {}
    __device__ __forceinline__ bool live(int s) const
    {
        return mine && (PLAIN || s < length);
    }
    __device__ __forceinline__ long long rows(int s) const { return at.end(s) - at[s]; }
    // How many rows the step behind step s begins after it, as the thread reads: none behind its
    // last step.
    __device__ __forceinline__ int rows_on(int s) const
    {
        if (s + 1 >= (PLAIN || !length ? steps : length)) return 0;
        return int(at.back ? -at.B : rows(s));
    }
    // What it reads in the last step that it has, and in the first one.
    __device__ __forceinline__ long long last_row() const
    {
        const int last = length ? length : steps;
        return at[last ? last - 1 : 0] + row;
    }
    __device__ __forceinline__ long long first_row() const { return at[0] + row; }
};

template <
    bool PLAIN, bool ROOM, template <typename> class Cell, typename T, typename Seat,
    typename Products>
__device__ __forceinline__ void all_steps(
    const Cell<typename Acc<T>::type>& whole, const Forward<Cell, T>& arrays, const Steps& at,
    const Seat& me, Products& products)
{
    typedef typename Acc<T>::type A;
    typedef Cell<A> C;
    typedef typename Products::N N;
    const int LAST = C::PRODUCTS - 1, ALL = C::width(0) + (LAST == 1 ? C::width(1) : 0);
    const Walk<PLAIN> walk(at, me);
    const int H = walk.H;
    C cell = whole;
    if (PLAIN) make_plain(cell, 0);
    products.load([&](auto product, int k, int unit, int c) -> N {
        const Weights<T> w = arrays.w[product.NUMBER];
        if (k >= H || unit >= H) return N(0.f);
        return products.held(w.w[k * w.row + (weight_of(whole, c, 0) * H + unit) * w.column]);
    });
    typename C::Unit unit = {};
    if (me.units) unit = cell.unit(me.unit, H);
    products.begin();
    __syncthreads();  // before the first state
    typename C::State state = {};
    if (walk.mine) {
#pragma unroll
        for (int k = 0; k < C::CARRIED; ++k)
            array_of<A>(state)[k] = number_at<A>(arrays.states[k], arrays.first[k], walk.own);
        products.template put<1>(Product<0>(), 0, &state.h);
    }
    // Where columns of z stand behind the first one of a row.
    int columns[ALL];
#pragma unroll
    for (int n = 0; n < ALL; ++n)
        columns[n] = in_register(cell.column(n < C::width(0) ? n : n - C::width(0)) * H);
    const long long row = walk.first_row();
    const A* z_row[C::PRODUCTS];
#pragma unroll
    for (int p = 0; p < C::PRODUCTS; ++p)
        z_row[p] = arrays.z[p] + row * (C::width(p) * H) + walk.unit;
    long long n = row * H + walk.unit;
    const bool outputs = arrays.output;
    T* output = arrays.output + row * arrays.output_row + walk.unit;
    A z[ALL];
    auto fetch = [&]() {
#pragma unroll
        for (int n = 0; n < ALL; ++n) z[n] = z_row[n >= C::width(0)][columns[n]];
    };
    if (walk.steps) fetch();
    products.meet();  // before the first step
    for (int s = 0; s < walk.steps; ++s) {
        const bool live = walk.live(s);
        const int rows_on = in_register(walk.rows_on(s)), numbers = rows_on * H;
        typename C::Saved saved;
        typename C::State made = state;
        auto behind = [&](auto product) {
            constexpr int p = decltype(product)::NUMBER, WIDTH = C::width(p);
            const int turn = LAST == 1 ? p : s & 1;
            A sums[WIDTH];
            products.multiply(product, turn, walk.rows(s), sums);
            A h = A(0.f);
            if (ROOM || live)
                h = cell.forward(product, unit, z + p * C::width(0), sums, made, saved);
            if (live) products.template put<1>(Product<0>(), turn ^ 1, &h);
            if (p == LAST) {
                // What comes next is on its way during a product; at last the same again.
#pragma unroll
                for (int k = 0; k < C::PRODUCTS; ++k)
                    z_row[k] += (long long)numbers * C::width(k);
                fetch();
            }
            products.meet();  // after a product
            if (live) {
#pragma unroll
                for (int k = C::saved_before(p); k < C::saved_before(p + 1); ++k)
                    store(arrays.saved[k] + n, array_of<A>(saved)[k]);
            }
            if (p == LAST && live && outputs) store(output, saved.h);
        };
        behind(Product<0>());
        if constexpr (LAST == 1) behind(Product<1>());
        n += numbers;
        output += rows_on * int(arrays.output_row);
#pragma unroll
        for (int k = 0; k < C::CARRIED; ++k)
            array_of<A>(state)[k] =
                live || PLAIN ? array_of<A>(made)[k] : array_of<A>(state)[k];
    }
    if (walk.mine)
#pragma unroll
        for (int k = 0; k < C::CARRIED; ++k)
            leave_at(arrays.states[k], arrays.last[k], walk.own, array_of<A>(state)[k]);
}

template <
    bool PLAIN, bool ROOM, template <typename> class Cell, typename T, typename Seat,
    typename Products>
__device__ __forceinline__ void all_steps(
    const Cell<typename Acc<T>::type>& whole, const Backward<Cell, T>& arrays, const Steps& at,
    const Seat& me, Products& products)
{
    typedef typename Acc<T>::type A;
    typedef Cell<A> C;
    typedef typename Products::N N;
    const int LAST = C::PRODUCTS - 1, BEFORE = C::READ - before_of<C>(0);
    const Walk<PLAIN> walk(at, me);
    const int H = walk.H;
    C cell = whole;
    if (PLAIN) make_plain(cell, 0);
    products.load([&](auto product, int k, int unit, int) -> N {
        constexpr int WIDTH = C::width(decltype(product)::NUMBER);
        const Weights<T> w = arrays.w[product.NUMBER];
        const int column = k / WIDTH;
        if (column >= H || unit >= H) return N(0.f);
        const int delta = weight_of(whole, k % WIDTH, 0) * H + column;
        return products.held(w.w[unit * w.row + delta * w.column]);
    });
    typename C::Unit unit = {};
    if (me.units) unit = cell.unit(me.unit, H);
    products.begin();
    typename C::Gradients gradients = {};
    if (walk.mine)
#pragma unroll
        for (int k = 0; k < C::GRADIENTS; ++k)
            array_of<A>(gradients)[k] = number_at<A>(arrays.gradients[k], arrays.last[k], walk.own);
    const long long row = walk.last_row();
    const int given_row = arrays.given[0] && arrays.given_row ? int(arrays.given_row) : H;
    long long n = row * H + walk.unit;
    const T* given_at[C::GIVEN];
#pragma unroll
    for (int k = 0; k < C::GIVEN; ++k)
        given_at[k] = arrays.given[k] + row * (k ? H : given_row) + walk.unit;
    T* delta_row[C::PRODUCTS];
#pragma unroll
    for (int p = 0; p < C::PRODUCTS; ++p)
        delta_row[p] = arrays.deltas[p] + row * (C::deltas(p) * H) + walk.unit;
    int places[C::deltas(0) > C::deltas(LAST) ? C::deltas(0) : C::deltas(LAST)];
#pragma unroll
    for (int k = 0; k < sizeof(places) / sizeof(int); ++k) places[k] = place_of(cell, k, 0) * H;
    T read[C::READ], given[C::GIVEN] = {};
    // Reads what step s needs; the step before it has so many rows.
    auto fetch = [&](int s, int rows_back) {
#pragma unroll
        for (int k = 0; k < C::READ; ++k) {
            const T* number = arrays.read[k] + n;
            if (k >= BEFORE && arrays.first[k])
                number = s ? number - rows_back * H
                           : arrays.first[k] + walk.row * (long long)H + walk.unit;
            read[k] = *number;
        }
#pragma unroll
        for (int k = 0; k < C::GIVEN; ++k) if (arrays.given[k]) given[k] = *given_at[k];
    };
    typename C::Factors factors;
    auto make_factors = [&]() {
        typename C::Read of_unit;
#pragma unroll
        for (int k = 0; k < C::READ; ++k) array_of<A>(of_unit)[k] = wide(read[k]);
        factors = cell.factors(unit, of_unit);
    };
    int rows_back = walk.steps > 1 ? walk.rows_on(walk.steps - 2) : 0;
    if (walk.steps) fetch(walk.steps - 1, rows_back);
    make_factors();
    __syncthreads();  // before the first deltas
    for (int s = walk.steps - 1; s >= 0; --s) {
        const bool live = walk.live(s);
        typename C::Gradients made = gradients;
        A deltas[C::PRODUCTS][sizeof(places) / sizeof(int)], past = A(0.f), sums[1];
        // dh: the gradient of the next product, without the one that the caller passes.
        auto before = [&](auto product, A dh) {
            constexpr int p = decltype(product)::NUMBER;
            A of_unit[C::GIVEN];
#pragma unroll
            for (int k = 0; k < C::GIVEN; ++k) of_unit[k] = wide(given[k]);
            if (p == LAST) dh += of_unit[0];
            past = cell.backward(product, factors, dh, of_unit, made, deltas[p]);
            if (live)
                products.template put<C::width(p)>(product, LAST == 1 ? p : s & 1, deltas[p]);
        };
        auto keep = [&](auto product) {
            constexpr int p = decltype(product)::NUMBER;
            if (live)
#pragma unroll
                for (int k = 0; k < C::deltas(p); ++k)
                    store(delta_row[p] + places[k], deltas[p][k]);
        };
        before(Product<LAST>(), gradients.h);
        products.meet();  // in a step back
        keep(Product<LAST>());
        if constexpr (LAST == 1) {
            products.multiply(Product<1>(), 1, walk.rows(s), sums);
            before(Product<0>(), sums[0]);
            products.meet();  // between the products of a step back
            keep(Product<0>());
        }
        // What comes next is on its way while this product is made; at last the same again.
        const int numbers = rows_back * H;
        n -= numbers;
#pragma unroll
        for (int p = 0; p < C::PRODUCTS; ++p) delta_row[p] -= (long long)numbers * C::deltas(p);
#pragma unroll
        for (int k = 0; k < C::GIVEN; ++k) given_at[k] -= k ? numbers : rows_back * given_row;
        rows_back = in_register(s > 1 ? walk.rows_on(s - 2) : 0);
        fetch(s > 1 ? s - 1 : 0, rows_back);
        products.multiply(Product<0>(), LAST == 1 ? 0 : s & 1, walk.rows(s), sums);
        made.h = past + sums[0];
#pragma unroll
        for (int k = 0; k < C::GRADIENTS; ++k)
            array_of<A>(gradients)[k] =
                live || PLAIN ? array_of<A>(made)[k] : array_of<A>(gradients)[k];
        // Behind the product, off the way from step to step.
        make_factors();
    }
    if (walk.mine)
#pragma unroll
        for (int k = 0; k < C::GRADIENTS; ++k)
            leave_at(arrays.gradients[k], arrays.made[k], walk.own, array_of<A>(gradients)[k]);
}
"""
)
