"""
All time steps in one launch, by threads that have one sequence and one unit each.

These are the loops of ``all_steps`` for ``rows``, without a branch in a step.
"""

from __future__ import annotations

SOURCE = r"""
// Has a cell without what it calls optional.
template <typename C>
__device__ __forceinline__ auto make_plain(C& cell, int) -> decltype(cell.plain())
{
    cell.plain();
}
template <typename C> __device__ __forceinline__ void make_plain(C&, long) {}

// The rows of a step: where they begin, whether one is the thread's, and whether the block has any.
template <bool PLAIN> struct Walk {
    long long from;
    bool live, any;
    int row, unit;  // of the thread; in plain walks another one's where it has none
    template <typename Seat>
    __device__ __forceinline__ Walk(const Steps& at, const Seat& me, int s)
        : from(at[s]), live(me.active(from, at.end(s))), any(from + me.first < at.end(s)),
          row(live || !PLAIN ? me.row : 0), unit(live || !PLAIN ? me.unit : 0) {}
    // To step s, the next one in this direction.
    template <typename Seat>
    __device__ __forceinline__ void go(const Steps& at, const Seat& me, int s, int direction)
    {
        if (PLAIN) from += (at.back ? -direction : direction) * at.B;
        else *this = Walk(at, me, s);
    }
    // What to read without a branch: number n of the first row where the thread has nothing.
    __device__ __forceinline__ long long number(long long width, int n) const
    {
        return PLAIN || live ? (from + row) * width + n : 0;
    }
    // How many rows those before step s are from its own.
    __device__ __forceinline__ long long before(const Steps& at, int s) const
    {
        return PLAIN ? (at.back ? at.B : -at.B) : at[s - 1] - from;
    }
};

// The loops of ``all_steps`` for a thread that has one sequence and one unit. Nothing in a step
// branches: what a thread has not it computes all the same, and neither leaves nor stores it. What
// others wait for is left first, and what they do not is stored behind the barrier.
//
// PLAIN: all sequences have all steps, and the cell has none of what it calls optional. `whole` is
// the cell as the launch passes it.
template <bool PLAIN, template <typename> class Cell, typename T, typename Seat, typename Products>
__device__ __forceinline__ void steps_of_one(
    const Cell<typename Acc<T>::type>& whole, const Cell<typename Acc<T>::type>& cell,
    const Forward<Cell, T> arrays, const Steps& at, const Seat& me, Products& products)
{
    typedef typename Acc<T>::type A;
    typedef Cell<A> C;
    const int LAST = C::PRODUCTS - 1, ALL = C::width(0) + (LAST == 1 ? C::width(1) : 0);
    const int H = int(at.H), steps = int(at.steps);
    const bool mine = me.active(0, at.B);
    products.load([&](auto product, int k, int unit, int c) -> A {
        const Weights<T> w = arrays.w[product.NUMBER];
        if (k >= H || unit >= H) return A(0.f);
        return wide(w.w[k * w.row + (weight_of(cell, c, 0) * H + unit) * w.column]);
    });
    typename C::Unit unit = {};
    if (me.units) unit = cell.unit(me.unit, H);
    products.begin();
    __syncthreads();  // before the first state
    const long long own = me.row * (long long)H + me.unit;
    typename C::State state = {};
    if (mine) {
#pragma unroll
        for (int k = 0; k < C::CARRIED; ++k)
            array_of<A>(state)[k] = number_at<A>(arrays.states[k], arrays.first[k], own);
        products.template leave_one<1>(Product<0>(), 0, &state.h);
    }
    // Where columns of z stand behind the first one of a row.
    int columns[ALL];
#pragma unroll
    for (int n = 0; n < ALL; ++n)
        columns[n] = cell.column(n < C::width(0) ? n : n - C::width(0)) * H;
    Walk<PLAIN> walk(at, me, 0);
    A next[ALL];
    auto fetch = [&]() {
#pragma unroll
        for (int n = 0; n < ALL; ++n) {
            const int p = n >= C::width(0);
            next[n] = (arrays.z[p] + walk.number(C::width(p) * H, walk.unit))[columns[n]];
        }
    };
    fetch();
    T* const output = arrays.output;
    products.meet();  // before the first step
    // All is done when the first sequence, the longest, is.
    for (int s = 0; s < steps && walk.any; ++s) {
        const bool live = walk.live;
        const long long n = walk.from + me.row;
        A z[ALL];
#pragma unroll
        for (int k = 0; k < ALL; ++k) z[k] = next[k];
        // What comes next is on its way while this step is computed; at last the same again.
        if (s + 1 < steps) walk.go(at, me, s + 1, 1);
        fetch();
        typename C::Saved saved;
        typename C::State made = state;
        auto behind = [&](auto product) {
            constexpr int p = decltype(product)::NUMBER, WIDTH = C::width(p);
            const int turn = LAST == 1 ? p : s & 1;
            A sums[WIDTH][1], of_unit[WIDTH];
            products.multiply(product, turn, 0, sums);
#pragma unroll
            for (int k = 0; k < WIDTH; ++k) of_unit[k] = sums[k][0];
            const A h = cell.forward(product, unit, z + p * C::width(0), of_unit, made, saved);
            if (live) products.template leave_one<1>(Product<0>(), turn ^ 1, &h);
            products.meet();  // after a product
            if (live) {
#pragma unroll
                for (int k = C::saved_before(p); k < C::saved_before(p + 1); ++k)
                    store(arrays.saved[k] + n * H + me.unit, array_of<A>(saved)[k]);
            }
            if (p == LAST && live && output)
                store(output + n * arrays.output_row + me.unit, saved.h);
        };
        behind(Product<0>());
        if constexpr (LAST == 1) behind(Product<1>());
#pragma unroll
        for (int k = 0; k < C::CARRIED; ++k)
            array_of<A>(state)[k] =
                live || PLAIN ? array_of<A>(made)[k] : array_of<A>(state)[k];
    }
    if (mine)
#pragma unroll
        for (int k = 0; k < C::CARRIED; ++k)
            leave_at(arrays.states[k], arrays.last[k], own, array_of<A>(state)[k]);
}

template <bool PLAIN, template <typename> class Cell, typename T, typename Seat, typename Products>
__device__ __forceinline__ void steps_of_one(
    const Cell<typename Acc<T>::type>& whole, const Cell<typename Acc<T>::type>& cell,
    const Backward<Cell, T> arrays, const Steps& at, const Seat& me, Products& products)
{
    typedef typename Acc<T>::type A;
    typedef Cell<A> C;
    const int LAST = C::PRODUCTS - 1;
    const int H = int(at.H), steps = int(at.steps);
    const bool mine = me.active(0, at.B);
    products.load([&](auto product, int k, int unit, int) -> A {
        constexpr int WIDTH = C::width(decltype(product)::NUMBER);
        const Weights<T> w = arrays.w[product.NUMBER];
        const int column = k / WIDTH;
        if (column >= H || unit >= H) return A(0.f);
        // An index that is known only when it runs would have the copy in slow memory.
        const int delta = weight_of(whole, k % WIDTH, 0) * H + column;
        return wide(w.w[unit * w.row + delta * w.column]);
    });
    typename C::Unit unit = {};
    if (me.units) unit = cell.unit(me.unit, H);
    products.begin();
    const long long own = me.row * (long long)H + me.unit;
    typename C::Gradients gradients = {};
    if (mine)
#pragma unroll
        for (int k = 0; k < C::GRADIENTS; ++k)
            array_of<A>(gradients)[k] = number_at<A>(arrays.gradients[k], arrays.last[k], own);
    const long long given_row = arrays.given[0] && arrays.given_row ? arrays.given_row : H;
    // How many numbers the states before the first step are behind those after each step, in bytes:
    // to choose between two numbers costs less than between two pointers.
    long long start[C::READ];
#pragma unroll
    for (int k = 0; k < C::READ; ++k)
        start[k] = (long long)arrays.first[k] - (long long)arrays.read[k];
    int step = steps - 1;
    Walk<PLAIN> walk(at, me, step);
    T read[C::READ], given[C::GIVEN] = {};
    auto fetch = [&]() {
        const long long e = walk.number(H, walk.unit), bytes = H * int(sizeof(T));
#pragma unroll
        for (int k = 0; k < C::READ; ++k) {
            const char* number = reinterpret_cast<const char*>(arrays.read[k] + e);
            if (k >= C::READ - before_of<C>(0) && arrays.first[k] && (PLAIN || walk.live))
                number += step ? walk.before(at, step) * bytes : start[k] - at[0] * bytes;
            read[k] = *reinterpret_cast<const T*>(number);
        }
#pragma unroll
        for (int k = 0; k < C::GIVEN; ++k)
            if (arrays.given[k])
                given[k] = arrays.given[k][k ? e : walk.number(given_row, walk.unit)];
    };
    typename C::Factors factors;
    auto make_factors = [&]() {
        typename C::Read of_unit;
#pragma unroll
        for (int k = 0; k < C::READ; ++k) array_of<A>(of_unit)[k] = wide(read[k]);
        factors = cell.factors(unit, of_unit);
    };
    fetch();
    make_factors();
    __syncthreads();  // before the first deltas
    for (int s = steps - 1; s >= 0; --s) {
        const bool live = walk.live, any = walk.any;  // of the sequences that meet
        const long long n = walk.from + me.row;
        typename C::Gradients made = gradients;
        A deltas[C::PRODUCTS][C::deltas(0) > C::deltas(LAST) ? C::deltas(0) : C::deltas(LAST)];
        A past = A(0.f);
        // dh: the gradient of the next product, without the one that the caller passes.
        auto before = [&](auto product, A dh) {
            constexpr int p = decltype(product)::NUMBER;
            A of_unit[C::GIVEN];
#pragma unroll
            for (int k = 0; k < C::GIVEN; ++k)
                of_unit[k] = arrays.given[k] ? wide(given[k]) : A(0.f);
            if (p == LAST) dh += of_unit[0];
            past = cell.backward(product, factors, dh, of_unit, made, deltas[p]);
            if (live)
                products.template leave_one<C::width(p)>(
                    product, LAST == 1 ? p : s & 1, deltas[p]);
        };
        auto stored = [&](auto product) {
            constexpr int p = decltype(product)::NUMBER;
            if (live)
#pragma unroll
                for (int k = 0; k < C::deltas(p); ++k)
                    store(arrays.deltas[p] + n * (C::deltas(p) * H) + me.unit
                              + place_of(cell, k, 0) * H,
                          deltas[p][k]);
        };
        before(Product<LAST>(), gradients.h);
        if (s > 0) {
            step = s - 1;
            walk.go(at, me, step, -1);
        }
        A sums[1][1];
        if (any)
            products.meet();  // in a step back
        stored(Product<LAST>());
        if constexpr (LAST == 1) {
            if (any) {
                products.multiply(Product<1>(), 1, 0, sums);
                before(Product<0>(), sums[0][0]);
                products.meet();  // between the products of a step back
            }
            stored(Product<0>());
        }
        fetch();
        if (any) {
            products.multiply(Product<0>(), LAST == 1 ? 0 : s & 1, 0, sums);
            made.h = past + sums[0][0];
        }
#pragma unroll
        for (int k = 0; k < C::GRADIENTS; ++k)
            array_of<A>(gradients)[k] =
                live || PLAIN ? array_of<A>(made)[k] : array_of<A>(gradients)[k];
        // Behind the product, off the way from step to step.
        make_factors();
    }
    if (mine)
#pragma unroll
        for (int k = 0; k < C::GRADIENTS; ++k)
            leave_at(arrays.gradients[k], arrays.made[k], own, array_of<A>(gradients)[k]);
}
"""
