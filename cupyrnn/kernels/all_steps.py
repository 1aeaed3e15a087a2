"""
All time steps in one launch: the loops over the steps, for any cell and any kind of products.

A kernel of ``rows``, ``grid`` or ``cluster`` makes a tile and products, and calls one of these
loops. The tile assigns a unit and a sequence to each thread. A thread keeps its states in
registers. The operands of products go through memory that the threads share.
"""

from __future__ import annotations

from . import cell

# A tile, for B sequences of H units, has
#
#   int first, row, unit        the first sequence of the threads that wait for each other; the
#                               thread's sequence; its unit
#   int units                   whether the thread stores the numbers of that unit and sequence;
#                               another lane may have the same ones
#
# and products, which use two vectors alternately, have
#
#   N, to_operand(weight)       the type in which matrices are stored, and a weight of this type
#   load(value)                 loads the matrices; value(product, k, unit, column) is the factor of
#                               number k of a vector for a column of a unit
#   begin()                     fills all vectors with zeros
#   store_numbers<COUNT>(product, turn, v)
#                               stores COUNT numbers of the thread's unit in such a vector
#   sync()                      waits until all threads have stored their numbers
#   multiply(product, turn, rows, sums)
#                               computes the sums of the thread's unit, by column; `rows` is the
#                               number of rows of the step
#   LATE, finish(product, sums) whether some sums come from other blocks; waits for these sums
#
# A step has no branches: a thread without a sequence or a unit computes with another thread's
# numbers, and stores nothing. Numbers that other threads wait for are stored first, all others
# after the barrier.
#
# Each step loads the numbers of a later step: see ``Coming``.
#
# PLAIN: all sequences have all steps, and the cell uses no optional member.
# PADDED: sequences have the lengths and resets of ``Steps``. Every thread with a row stores all
# steps of the row, and numbers for every product.
# ROOM: whether there are registers enough for threads without a sequence or a unit to compute too.
# If not, there is a branch, which keeps the compiler from using more registers at once.
SOURCE = (
    cell.SOURCE
    + r"""
#ifndef CUDA_ON_CPU
// A number that the compiler keeps in a register instead of computing it again.
template <typename V> __device__ __forceinline__ V in_register(V v)
{
    asm("" : "+r"(v));
    return v;
}

// An address in shared memory as a number, so that it stays in a register too.
typedef unsigned Place;
__device__ __forceinline__ Place in_shared(void* memory)
{
    return in_register(unsigned(__cvta_generic_to_shared(memory)));
}
template <typename V> __device__ __forceinline__ V* at_place(Place p)
{
    return static_cast<V*>(__cvta_shared_to_generic(p));
}

// Asynchronous copies from global to shared memory, in groups.
template <typename V> __device__ __forceinline__ void copy_async(Place to, const V* from)
{
    asm volatile("cp.async.ca.shared.global [%0], [%1], %2;"
                 :: "r"(to), "l"(__cvta_generic_to_global(from)), "n"(int(sizeof(V))));
}
__device__ __forceinline__ void end_copies() { asm volatile("cp.async.commit_group;"); }
// Waits until all groups of copies but the last GROUPS have arrived.
template <int GROUPS> __device__ __forceinline__ void wait_for_copies()
{
    asm volatile("cp.async.wait_group %0;" :: "n"(GROUPS) : "memory");
}
#endif

// Number n of a state, from the computation's array or from the stored one; zero if both are null.
template <typename A, typename T>
__device__ __forceinline__ A number_at(const A* computed, const T* stored, long long n)
{
    return stored ? A(wide(stored[n])) : computed ? computed[n] : A(0.f);
}
// Writes number n of a state to each array that is not null.
template <typename A, typename T>
__device__ __forceinline__ void write_at(A* computed, T* stored, long long n, A v)
{
    if (computed) computed[n] = v;
    if (stored) store(stored + n, v);
}

template <typename A> struct alignas(16) Pack { A v[16 / sizeof(A)]; };

// Loads the numbers that a thread reads in a step ahead of time: SLOTS - 1 steps before, to a ring
// in shared memory, with room for OWNERS units and sequences; or, if SLOTS is 1, one step before,
// to registers. Registers cannot be loaded further ahead: waiting for one load waits for all.
//
// HELPERS lanes of a warp have the same unit of the same sequence. Each copies some of the numbers.
template <typename V, int COUNT, int SLOTS, int OWNERS, int LANES> struct Coming {
    static const int HELPERS = LANES;
    static const bool RING = SLOTS > 1;
    static const int AHEAD = RING ? SLOTS - 1 : 1, EACH = (COUNT + HELPERS - 1) / HELPERS;
    static const int P = 16 / sizeof(V), PACKS = (COUNT + P - 1) / P;
    static const int LENGTH = RING ? SLOTS * OWNERS * PACKS : 1;
    static const int SLOT = OWNERS * PACKS * 16;  // bytes
    alignas(16) V v[PACKS * P];
    int helper, behind;            // number of this lane; bytes before its first number
    Place first, next, last, now;  // slots: the first, filled next, read last, read next
    __device__ __forceinline__ Coming(Pack<V>* memory, int owner, int number)
        : v(), helper(number), behind(in_register(number * int(sizeof(V)))),
          first(in_shared(memory + owner * PACKS)), next(first + behind),
          last(first + AHEAD * SLOT), now(first) {}
    // Calls f(j, k) for each number k that this thread loads; k is its j-th.
    template <typename F> __device__ __forceinline__ void each(F f) const
    {
#pragma unroll
        for (int k = 0; k < COUNT; ++k)
            if (HELPERS == 1 || k % HELPERS == helper) f(k / HELPERS, k);
    }
    // Loads the j-th number of a step.
    __device__ __forceinline__ void ask(int j, const V* from)
    {
        if constexpr (!RING) v[j] = *from;
        else if ((j + 1) * HELPERS <= COUNT || j * HELPERS + helper < COUNT)
            copy_async(next + j * HELPERS * int(sizeof(V)), from);
    }
    // Stores zeros for number k in all slots, because nobody loads it.
    __device__ __forceinline__ void leave_out(int k) const
    {
        if constexpr (RING)
            for (int slot = 0; slot < SLOTS; ++slot)
                *at_place<V>(first + slot * SLOT + k * int(sizeof(V))) = V(0.f);
    }
    // Ends the loads of a step.
    __device__ __forceinline__ void go()
    {
        if constexpr (RING) end_copies();
        next = next + SLOT;
    }
    // Waits for the numbers of the next step. The BEHIND steps after it may still lack theirs.
    // Other threads see them after a barrier.
    template <int BEHIND> __device__ __forceinline__ void wait() const
    {
        if constexpr (RING) wait_for_copies<BEHIND>();
    }
    // Reads a slot into v. The next load overwrites the slot that was read before this one.
    __device__ __forceinline__ void take()
    {
        if constexpr (RING) {
#pragma unroll
            for (int n = 0; n < PACKS; ++n)
                *reinterpret_cast<Pack<V>*>(v + n * P) = *at_place<Pack<V>>(now + n * 16);
            next = last + behind;
            last = now;
            now = now == first + AHEAD * SLOT ? first : now + SLOT;
        }
    }
};

// The steps of a thread: how many its block has, and which of them are its own.
template <bool PLAIN, bool PADDED> struct Walk {
    static const bool EVEN = PLAIN || PADDED;  // all steps have as many rows
    const Steps& at;
    int H, steps, length;  // steps of the block; steps of the thread's sequence, 0 without one
    int row, unit;         // what the thread reads: row 0 or unit 0 if it has no own
    int apart;             // EVEN: rows from step to step
    bool mine;             // whether the thread stores numbers
    unsigned ends;         // PADDED: the steps of its sequence in the order of time
    template <typename Tile>
    __device__ __forceinline__ Walk(const Steps& all, const Tile& me)
        : at(all), H(int(at.H)), steps(at.length(me.first)),
          length(me.row < at.B && me.unit < H ? at.length(me.row) : 0), row(length ? me.row : 0),
          unit(length ? me.unit : 0), apart(in_register(int(at.back ? -at.B : at.B))),
          mine(me.units && me.row < at.B),
          ends(PADDED && at.lengths ? at.lengths[row] : steps) {}
    __device__ __forceinline__ int time(int s) const { return at.back ? steps - 1 - s : s; }
    __device__ __forceinline__ bool live(int s) const
    {
        return PADDED ? unsigned(time(s)) < ends : mine && (PLAIN || s < length);
    }
    // Whether a step stores its numbers.
    __device__ __forceinline__ bool keeps(bool live) const { return PADDED ? mine : live; }
    // Whether no state passes from the step before to step s.
    __device__ __forceinline__ bool begins(int s) const
    {
        if (!PADDED || !at.resets || !live(s)) return false;
        const unsigned later = time(s) + int(at.back);  // the later step of the two in time
        return later < ends && at.resets[later * at.B + row];
    }
    __device__ __forceinline__ long long rows(int s) const { return at.end(s) - at[s]; }
    // Rows from the thread's row of step s to its row of step s + 1; 0 after its last step.
    __device__ __forceinline__ int rows_on(int s) const
    {
        if (EVEN) return apart;
        if (s + 1 >= (length ? length : steps)) return 0;
        return int(at.back ? -at.B : rows(s));
    }
    // Rows from the thread's row of step s - 1 to its row of step s; 0 before its first step, and
    // in steps after its last one.
    __device__ __forceinline__ int rows_back(int s) const
    {
        if (EVEN) return apart;
        if (s <= 0 || (length && s >= length)) return 0;
        return int(at.back ? -at.B : rows(s - 1));
    }
    // The rows that the thread reads in its last step, and in its first.
    __device__ __forceinline__ long long last_row() const
    {
        const int last = length ? length : steps;
        return at[last ? last - 1 : 0] + row;
    }
    __device__ __forceinline__ long long first_row() const { return at[0] + row; }
};

template <
    bool PLAIN, bool PADDED, bool ROOM, template <typename> class Cell, typename T, typename Tile,
    typename Products, typename Ahead>
__device__ __forceinline__ void all_steps(
    const Cell<typename Acc<T>::type>& whole, const Forward<Cell, T>& arrays, const Steps& at,
    const Tile& me, Products& products, Ahead& coming)
{
    typedef typename Acc<T>::type A;
    typedef Cell<A> C;
    typedef typename Products::N N;
    const int LAST = C::PRODUCTS - 1;
    const int H = int(at.H);
    C cell = whole;
    if (PLAIN) cell.plain();
    products.load([&](auto product, int k, int unit, int c) -> N {
        const Weights<T> w = arrays.w[product.NUMBER];
        if (k >= H || unit >= H) return N(0.f);
        return products.to_operand(w.w[k * w.row + (whole.weight(c) * H + unit) * w.column]);
    });
    const Walk<PLAIN, PADDED> walk(at, me);
    auto own = [&]() { return me.row * (long long)H + me.unit; };  // its number in a state
    typename C::Unit unit = {};
    if (me.units) unit = cell.unit(me.unit, H);
    products.begin();
    __syncthreads();  // before the first state
    typename C::State state = {};
    if (walk.mine) {
#pragma unroll
        for (int k = 0; k < C::CARRIED; ++k)
            array_of<A>(state)[k] =
                walk.begins(0) ? A(0) : number_at<A>(arrays.states[k], arrays.first[k], own());
        products.template store_numbers<1>(Product<0>(), 0, &state.h);
    }
    const long long row = walk.first_row();
    long long n = row * H + walk.unit;
    const bool outputs = arrays.output;
    T* output = arrays.output + row * arrays.output_row + walk.unit;
    // The length of a row of z, and the place of its number k.
    auto numbers_of = [&](int k) { return C::width(k < C::width(0) ? 0 : LAST) * H; };
    auto z_at = [&](int k) -> const A* {
        const int second = k >= C::width(0);
        const int column = cell.column(k - second * C::width(0)) * H + walk.unit;
        return arrays.z[second * LAST] + row * numbers_of(k) + column;
    };
    const A* from[Ahead::EACH];
    int stride[Ahead::EACH];
    coming.each([&](int j, int k) { from[j] = z_at(k), stride[j] = numbers_of(k); });
    auto ask = [&](int s) {
        const int rows_on = walk.rows_on(s);
#pragma unroll
        for (int j = 0; j < Ahead::EACH; ++j) {
            if (!walk.EVEN || s < walk.steps) coming.ask(j, from[j]);
            from[j] += PLAIN ? (long long)rows_on * stride[j] : rows_on * stride[j];
        }
        coming.go();
    };
    if (walk.steps)
#pragma unroll
        for (int s = 0; s < Ahead::AHEAD; ++s) ask(s);
    coming.template wait<Ahead::AHEAD - 1>();
    products.sync();  // before the first step
    int turn = 0;
    for (int s = 0; s < walk.steps; ++s) {
        const bool live = walk.live(s), begins = walk.begins(s + 1);
        coming.take();
        typename C::Saved saved;
        typename C::State after = state;
        auto behind = [&](auto product) {
            constexpr int p = decltype(product)::NUMBER, WIDTH = C::width(p);
            const int now = LAST == 1 ? p : turn;
            A sums[WIDTH];
            products.multiply(product, now, walk.rows(s), sums);
            products.finish(product, sums);
            A h = A(0.f);
            if (ROOM || live)
                h = cell.forward(product, unit, coming.v + p * C::width(0), sums, after, saved);
            if (PADDED && !live) h = p == LAST ? state.h : A(0);
            if (PADDED && p == LAST && begins) h = A(0);
            if (walk.keeps(live))
                products.template store_numbers<1>(Product<0>(), now ^ 1, &h);
            if (p == LAST) {
                ask(s + Ahead::AHEAD);
                coming.template wait<Ahead::AHEAD - 1>();
            }
            products.sync();  // after a product
            if (walk.keeps(live)) {
#pragma unroll
                for (int k = C::saved_before(p); k < C::saved_before(p + 1); ++k)
                    store(arrays.saved[k] + n,
                          PADDED && !live ? A(0) : array_of<A>(saved)[k]);
            }
            if (p == LAST && walk.keeps(live) && outputs)
                store(output, PADDED && !live ? A(0) : saved.h);
        };
        behind(Product<0>());
        if constexpr (LAST == 1) behind(Product<1>());
        turn ^= 1;
        const int rows_on = walk.rows_on(s);
        n += PLAIN ? (long long)rows_on * H : rows_on * H;
        output += PLAIN ? rows_on * arrays.output_row : rows_on * int(arrays.output_row);
#pragma unroll
        for (int k = 0; k < C::CARRIED; ++k)
            array_of<A>(state)[k] = begins ? A(0) :
                live || PLAIN ? array_of<A>(after)[k] : array_of<A>(state)[k];
    }
    if (walk.mine)
#pragma unroll
        for (int k = 0; k < C::CARRIED; ++k)
            write_at(arrays.states[k], arrays.last[k], own(), array_of<A>(state)[k]);
}

template <
    bool PLAIN, bool PADDED, bool ROOM, template <typename> class Cell, typename T, typename Tile,
    typename Products, typename Ahead>
__device__ __forceinline__ void all_steps(
    const Cell<typename Acc<T>::type>& whole, const Backward<Cell, T>& arrays, const Steps& at,
    const Tile& me, Products& products, Ahead& coming)
{
    typedef typename Acc<T>::type A;
    typedef Cell<A> C;
    typedef typename Products::N N;
    const int LAST = C::PRODUCTS - 1, BEFORE = C::READ - C::BEFORE;
    const int HELPERS = Ahead::HELPERS;
    const int H = int(at.H);
    C cell = whole;
    if (PLAIN) cell.plain();
    products.load([&](auto product, int k, int unit, int) -> N {
        constexpr int WIDTH = C::width(decltype(product)::NUMBER);
        const Weights<T> w = arrays.w[product.NUMBER];
        const int column = k / WIDTH;
        if (column >= H || unit >= H) return N(0.f);
        const int delta = whole.weight(k % WIDTH) * H + column;
        return products.to_operand(w.w[unit * w.row + delta * w.column]);
    });
    const Walk<PLAIN, PADDED> walk(at, me);
    auto own = [&]() { return me.row * (long long)H + me.unit; };  // its number in a state
    typename C::Unit unit = {};
    if (me.units) unit = cell.unit(me.unit, H);
    products.begin();
    typename C::Gradients gradients = {};
    if (walk.mine)
#pragma unroll
        for (int k = 0; k < C::GRADIENTS; ++k)
            array_of<A>(gradients)[k] = number_at<A>(arrays.gradients[k], arrays.last[k], own());
    const long long row = walk.last_row();
    const bool far = arrays.cotangents[0] && arrays.cotangent_row;
    const int cotangent_row = far ? int(arrays.cotangent_row) : H;
    long long n = row * H + walk.unit, cotangent_n = row * cotangent_row + walk.unit;
    T* delta_row[C::PRODUCTS];
#pragma unroll
    for (int p = 0; p < C::PRODUCTS; ++p)
        delta_row[p] = arrays.deltas[p] + row * (C::deltas(p) * H) + walk.unit;
    int places[C::deltas(0) > C::deltas(LAST) ? C::deltas(0) : C::deltas(LAST)];
#pragma unroll
    for (int k = 0; k < sizeof(places) / sizeof(int); ++k) places[k] = cell.place(k) * H;
    // The address of number k of a step.
    auto number_at = [&](int k) -> const T* {
        if (k == C::READ) return arrays.cotangents[0] + cotangent_n;
        return (k < C::READ ? arrays.read[k] : arrays.cotangents[k - C::READ]) + n;
    };
    const T *from[Ahead::EACH], *first[Ahead::EACH];
    int stride[Ahead::EACH];
    bool there[Ahead::EACH];
    coming.each([&](int j, int k) {
        from[j] = number_at(k), stride[j] = k == C::READ ? cotangent_row : H;
        there[j] = k < C::READ || arrays.cotangents[k - C::READ];
        if (!there[j]) coming.leave_out(k);
        const bool state = k >= BEFORE && k < C::READ && arrays.first[k];
        first[j] = state ? arrays.first[k] + walk.row * (long long)H + walk.unit : nullptr;
    });
    auto ask = [&](int s) {
        const int rows_back = walk.rows_back(s);
#pragma unroll
        for (int j = 0; j < Ahead::EACH; ++j) {
            const T* number = Ahead::RING ? from[j] : number_at(j);
            const int k = j * HELPERS;  // of the first lane
            if (k < C::READ && k + HELPERS > BEFORE && first[j])
                number = s ? number - rows_back * H : first[j];
            if (s >= 0 && (k + HELPERS <= C::READ || there[j])) coming.ask(j, number);
            from[j] -= (long long)rows_back * stride[j];
        }
        coming.go();
        n -= rows_back * H;
        cotangent_n -= rows_back * cotangent_row;
    };
    typename C::Factors factors;
    auto make_factors = [&]() {
        typename C::Read of_unit;
#pragma unroll
        for (int k = 0; k < C::READ; ++k) array_of<A>(of_unit)[k] = wide(coming.v[k]);
        factors = cell.factors(unit, of_unit);
    };
    if (walk.steps)
#pragma unroll
        for (int k = 1; k <= Ahead::AHEAD; ++k) ask(walk.steps - k);
    coming.template wait<Ahead::AHEAD - 1>();
    __syncthreads();  // before the first deltas
    coming.take();
    make_factors();
    int turn = 0;
    for (int s = walk.steps - 1; s >= 0; --s) {
        const bool live = walk.live(s), begins = walk.begins(s);
        typename C::Gradients earlier = gradients;
        A deltas[C::PRODUCTS][sizeof(places) / sizeof(int)], past = A(0.f), sums[1];
        // dh: the gradient of the next product, without the one that the caller passes.
        auto before = [&](auto product, A dh) {
            constexpr int p = decltype(product)::NUMBER;
            A of_unit[C::COTANGENTS];
#pragma unroll
            for (int k = 0; k < C::COTANGENTS; ++k)
                of_unit[k] = wide(coming.v[C::READ + k]);
            if (p == LAST) dh += of_unit[0];
            past = cell.backward(product, factors, dh, of_unit, earlier, deltas[p]);
            if (PADDED && !live)
#pragma unroll
                for (int k = 0; k < C::deltas(p); ++k) deltas[p][k] = A(0);
            if (walk.keeps(live))
                products.template store_numbers<C::width(p)>(
                    product, LAST == 1 ? p : turn, deltas[p]);
        };
        auto keep = [&](auto product) {
            constexpr int p = decltype(product)::NUMBER;
            if (walk.keeps(live))
#pragma unroll
                for (int k = 0; k < C::deltas(p); ++k)
                    store(delta_row[p] + places[k], deltas[p][k]);
        };
        before(Product<LAST>(), gradients.h);
        coming.template wait<Ahead::RING ? Ahead::AHEAD - 2 : 0>();
        products.sync();  // in a step back
        keep(Product<LAST>());
        if constexpr (LAST == 1) {
            products.multiply(Product<1>(), 1, walk.rows(s), sums);
            products.finish(Product<1>(), sums);
            before(Product<0>(), sums[0]);
            products.sync();  // between the products of a step back
            keep(Product<0>());
        }
        const int numbers = walk.rows_back(s) * H;
#pragma unroll
        for (int p = 0; p < C::PRODUCTS; ++p) delta_row[p] -= (long long)numbers * C::deltas(p);
        ask(s - Ahead::AHEAD);
        coming.take();
        products.multiply(Product<0>(), LAST == 1 ? 0 : turn, walk.rows(s), sums);
        turn ^= 1;
        // Before a wait, or after the product, because no other step waits for this.
        if constexpr (Products::LATE) make_factors();
        products.finish(Product<0>(), sums);
        earlier.h = past + sums[0];
#pragma unroll
        for (int k = 0; k < C::GRADIENTS; ++k)
            array_of<A>(gradients)[k] = begins ? A(0) :
                live || PLAIN ? array_of<A>(earlier)[k] : array_of<A>(gradients)[k];
        if constexpr (!Products::LATE) make_factors();
    }
    if (walk.mine)
#pragma unroll
        for (int k = 0; k < C::GRADIENTS; ++k)
            write_at(arrays.gradients[k], arrays.first_grads[k], own(), array_of<A>(gradients)[k]);
}
"""
)
