"""
How a block multiplies by its part of the recurrent matrices, where blocks exchange numbers.

A warp has a slice of the rows and all columns of its block. It waits only for the numbers of its
slice. Half formats use tensor cores from sm_80 on. All other dtypes are computed number by number.
"""

from __future__ import annotations

from . import rows

# An exchange of numbers is a struct with
#
#   SHARED                  whether vectors are in shared memory, two by turns. Else each vector has
#                           a place of its own in the memory of the device
#   SUMS                    whether blocks exchange sums. Then a block multiplies the numbers of its
#                           own units only, a warp for the units of one block. Else a block has the
#                           numbers of all units, and computes the sums of its own
#   BLOCKS, MEMORY          the blocks of a cluster, and bytes of shared memory
#   turns                   the number of products before
#   begin()                 starts; shared memory is already filled with zeros
#   send(to, word, slice, first, step)
#                           stores a word of a vector, which this slice reads. A cluster stores it
#                           in every step-th block, from the first one on
#   store_sum(to, sum)      stores a sum
#   wait(slice, bytes, first)
#                           waits for this many bytes of a slice. One thread of a warp is the first
#
# In the memory of the device no fence is needed. Each number is written once, by a relaxed store,
# to a place that held all ones before the launch. A reader repeats a relaxed load until no word is
# all ones. It concludes nothing about other memory. Loads and stores have words of one size, which
# the device reads and writes whole. No number is all ones: a word is a number, or two of a half
# format, and every NaN is the one of arithmetic, with a sign bit of zero. No place is used twice in
# a launch.
#
# How a block multiplies by its part of the matrices is a struct with
#
#   E, W                    the types of exchanged numbers and of their words
#   A, N                    the types of sums, and of the matrices in registers
#   UNITS, ROWS, WARPS      the units and sequences of the block, and its warps
#   MEMORY, MESSAGE         bytes of shared memory, and of what ``send`` stores at once
#   numbers(width)          how many numbers of a unit a vector has; `width` of them count
#   load(product, value)    loads the matrix of a product
#   of_slice(product)       how many numbers a slice has
#   send_unit<COUNT>(exchange, product, row, slot, unit, H, v)
#                           sends the numbers of a unit. Returns how many words the vector has if
#                           this is the last unit, else 0. row(slot): where a vector begins
#   multiply<WIDTH>(exchange, product, row, rows, count, sums)
#                           leaves the sums of a warp in sums[ROWS][row_of(WIDTH)]. The vectors of
#                           `rows` sequences have `count` numbers each
#
# ``ByNumbers`` computes in the type of the computation, with the ``Matrix`` of ``rows``.
#
# ``ByTensorCores`` has CHUNKS of 32 numbers of a vector in a slice. A row of its product is a
# column of the matrix, unit by unit, and a column is one of eight sequences. ``Fragments`` are
# pieces of sixteen such rows and 32 numbers. A lane has eight neighboring numbers, so that it reads
# 16 bytes of a vector at once: their order is free, as long as vectors and matrices have the same.
#
# ``mma`` is d[16, 8] += a[16, 16] @ b[16, 8], by all lanes of a warp. With g = lane / 4 and
# q = lane % 4 a lane has, two numbers to a register,
#   a: rows g, g + 8, g, g + 8; columns 2q, 2q, 2q + 8, 2q + 8 and the next
#   b: rows 2q, 2q + 8 and the next; column g
#   d: rows g, g, g + 8, g + 8; columns 2q, 2q + 1, 2q, 2q + 1
SOURCE = (
    rows.SOURCE
    + r"""
template <typename R> struct WordOf { typedef unsigned type; };
template <> struct WordOf<double> { typedef unsigned long long type; };

// Neighboring words that are read together.
template <typename W> struct alignas(16) Words {
    W w[16 / sizeof(W)];
    __device__ __forceinline__ bool missing() const
    {
        bool any = false;
#pragma unroll
        for (int n = 0; n < 16 / int(sizeof(W)); ++n) any |= w[n] == ~W(0);
        return any;
    }
};

#ifndef CUDA_ON_CPU
template <typename W> __device__ __forceinline__ void store_word(W* to, W word)
{
    if constexpr (sizeof(W) == 4)
        asm volatile("st.relaxed.gpu.global.u32 [%0], %1;" :: "l"(to), "r"(word) : "memory");
    else asm volatile("st.relaxed.gpu.global.u64 [%0], %1;" :: "l"(to), "l"(word) : "memory");
}
__device__ __forceinline__ unsigned load_word(const unsigned* from)
{
    unsigned word;
    asm volatile("ld.relaxed.gpu.global.u32 %0, [%1];" : "=r"(word) : "l"(from) : "memory");
    return word;
}
template <typename W> __device__ __forceinline__ Words<W> load_words(const Words<W>* from)
{
    Words<W> v;
    if constexpr (sizeof(W) == 4)
        asm volatile(
            "ld.relaxed.gpu.global.v4.u32 {%0, %1, %2, %3}, [%4];"
            : "=r"(v.w[0]), "=r"(v.w[1]), "=r"(v.w[2]), "=r"(v.w[3]) : "l"(from) : "memory");
    else asm volatile("ld.relaxed.gpu.global.v2.u64 {%0, %1}, [%2];"
                      : "=l"(v.w[0]), "=l"(v.w[1]) : "l"(from) : "memory");
    return v;
}
#endif

// Through the memory of the device.
struct InMemory {
    static const bool SHARED = false, SUMS = false;
    static const int BLOCKS = 1, MEMORY = 0;
    unsigned turns = 0;
    __device__ __forceinline__ InMemory(void*, int, unsigned*) {}
    template <typename V> static __device__ __forceinline__ void store_sum(V* to, V v) { *to = v; }
    template <typename W>
    static __device__ __forceinline__ void send(W* to, W word, int, int = 0, int = 1)
    {
        store_word(to, word);
    }
};
// A wait in vain ends. In use, where `over` is null, it ends the launch after about a second, and
// the next call that waits for the device reports it. In a trial it sets `over` after some tens of
// milliseconds; then this wait and all later ones end, and so does the launch, with wrong numbers.
__device__ __forceinline__ bool is_over(const unsigned* over)
{
    return over && load_word(over);
}
__device__ __forceinline__ bool gives_up(unsigned& looks, unsigned* over)
{
    ++looks;
#ifdef CUDA_ON_CPU
    __nanosleep(0);
    const unsigned MOST = 1u << 10;
#else
    const unsigned MOST = 1u << 16;
    if (!over && looks == 1u << 22) asm volatile("trap;");
#endif
    if (over && looks == MOST) store_word(over, 1u);
    return looks % 64 == 0 && is_over(over);
}

// Numbers as words.
__device__ __forceinline__ float not_all_ones(float v)
{
    return v == v ? v : __int_as_float(0x7fffffff);
}
__device__ __forceinline__ unsigned word_of(float v)
{
    return __float_as_uint(not_all_ones(v));
}
__device__ __forceinline__ unsigned long long word_of(double v)
{
    return v == v ? __double_as_longlong(v) : 0x7fffffffffffffff;
}
// Half of a word.
template <typename T> __device__ __forceinline__ unsigned half_word_of(float v)
{
    T t;
    store(&t, not_all_ones(v));
    return *reinterpret_cast<const unsigned short*>(&t);
}

// Loads from the wanted places.
template <int COUNT, typename W, typename Place>
__device__ __forceinline__ void look(Words<W> (&found)[COUNT], Place place, unsigned wanted)
{
#pragma unroll
    for (int n = 0; n < COUNT; ++n)
        if (wanted >> n & 1) found[n] = load_words(place(n));
}
// Loads again until no word is missing.
template <int COUNT, typename W, typename Place>
__device__ __forceinline__ void wait_for(Words<W> (&found)[COUNT], Place place, unsigned* over)
{
    if (is_over(over)) return;
    for (unsigned looks = 0;;) {
        bool missing = false;
#pragma unroll
        for (int n = 0; n < COUNT; ++n)
            if (found[n].missing()) {
                found[n] = load_words(place(n));
                missing = true;
            }
        if (!missing || gives_up(looks, over)) break;
    }
}

// A warp's part of a product, in blocks with UNITS units each.
template <typename Exchange, int UNITS> struct Share {
    static const bool SUMS = Exchange::SUMS;
    static const int OTHERS = SUMS ? Exchange::BLOCKS : 1;
    int slice = threadIdx.x / 32 / OTHERS;  // of the vectors that the block has
    int owner = SUMS ? threadIdx.x / 32 % OTHERS : blockIdx.x;  // the block of these sums
    const int first_unit = SUMS ? blockIdx.x * UNITS : 0;  // of these vectors
    // The number of these sums among the owner's, with so many warps in a block.
    __device__ __forceinline__ int sum(int warps) const
    {
        return first_unit / UNITS * (warps / OTHERS) + slice;
    }
    // The place of number j of a vector among of_unit numbers of every unit; or one past all.
    __device__ __forceinline__ int number(int j, int of_unit) const
    {
        return SUMS && j >= UNITS * of_unit ? 1 << 28 : first_unit * of_unit + j;
    }
};

template <
    typename Exchange, typename C, typename T, bool BACK, int OF_BLOCK, int SEQUENCES, int THREADS,
    int SLICE, int KEPT, int SLICE_2 = 0, int KEPT_2 = 0>
struct ByNumbers : Share<Exchange, OF_BLOCK> {
    typedef typename Acc<T>::type A;
    typedef typename Acc<T>::real R;
    typedef typename WordOf<R>::type W;
    typedef A E;
    typedef A N;
    static const int UNITS = OF_BLOCK, ROWS = SEQUENCES, WARPS = THREADS / 32;
    static const int P = 16 / sizeof(A), SPLIT = 32 / UNITS, AT_ONCE = ROWS < SPLIT ? ROWS : SPLIT;
    static const int LAST = C::PRODUCTS - 1;
    static __device__ constexpr int width(int p) { return BACK ? 1 : C::width(p); }
    static __device__ constexpr int shared_by(int width) { return width == 1 ? 4 : 2; }
    static __device__ constexpr int numbers(int width) { return width; }
    static __device__ constexpr int row_of(int width) { return width * UNITS + P; }
    typedef Matrix<A, SPLIT, SLICE, KEPT, shared_by(width(0)), width(0), THREADS> First;
    typedef Matrix<A, SPLIT, SLICE_2, KEPT_2, shared_by(width(LAST)), width(LAST), THREADS> Second;
    static_assert(ROWS % AT_ONCE == 0, "all sequences");
    // Vectors in shared memory have their numbers where Matrix::product reads them, slice by slice.
    // Others are copied there, by each warp its own slice.
    static const int LENGTH = ROWS * larger_of(First::LENGTH, LAST == 1 ? Second::LENGTH : 0);
    static const int COPIES = Exchange::SHARED ? 0 : LENGTH * WARPS / P;
    static const int MEMORY = (COPIES + First::SHARED + (LAST == 1 ? Second::SHARED : 0)) * 16;
    static const bool PAIRS = Exchange::SHARED && !Exchange::SUMS && sizeof(A) == 4;
    static const int MESSAGE = PAIRS ? 8 : sizeof(W);
    // The words that a lane loads together.
    static const int LOOKS = 4;
    OfProducts<First, Second> matrices;
    unsigned* over;
    A* vectors;  // of the warp
    Pack<A>* rest;

    __device__ __forceinline__ ByNumbers(uint4* memory, bool, unsigned* in_a_trial)
        : over(in_a_trial), vectors(reinterpret_cast<A*>(memory) + threadIdx.x / 32 * LENGTH),
          rest(reinterpret_cast<Pack<A>*>(memory) + COPIES) {}
    template <typename V> static __device__ __forceinline__ N to_operand(V v) { return wide(v); }
    template <int NUMBER> static __device__ constexpr int of_slice(Product<NUMBER>)
    {
        return NUMBER ? Second::LANES * SLICE_2 : First::LANES * SLICE;
    }
    template <typename Product, typename Value>
    __device__ __forceinline__ void load(Product product, Value value)
    {
        auto& m = matrices[product];
        const int lane = threadIdx.x % 32, begin = this->slice * of_slice(product);
        const int unit = this->owner * UNITS + lane / m.LANES * (m.LANES / SPLIT);
        const int of_unit = BACK ? C::width(Product::NUMBER) : 1;
        m.load(
            lane % m.LANES, rest + (Product::NUMBER ? First::SHARED : 0),
            [&](int k, int u, int c) -> A {
                return value(product, this->number(begin + k, of_unit), unit + u, c);
            });
    }
    template <typename Product, typename Row>
    __device__ __forceinline__ A* place(Product product, Row row, int slot, int j) const
    {
        if constexpr (!Exchange::SHARED) return reinterpret_cast<A*>(row(slot)) + j;
        const auto& m = matrices[product];
        const int slice = j / of_slice(product);
        return reinterpret_cast<A*>(row(0)) + (slice * ROWS + slot) * m.LENGTH
            + m.place(j % of_slice(product));
    }
    template <int COUNT, typename Product, typename Row>
    __device__ __forceinline__ int send_unit(
        const Exchange& exchange, Product product, Row row, int slot, int unit, int H,
        const A* v) const
    {
        const int OF_NUMBER = sizeof(A) / sizeof(R);
        if constexpr (PAIRS) {
            // The lanes of two neighboring units send both, each to every other block.
            const int step = (unit | 1) < H ? 2 : 1;
            const unsigned long long own = word_of(rounded<T>(v[0]));
            unsigned other = 0;
            if (step == 2)
                other = __shfl_xor_sync(3u << (threadIdx.x % 32 & ~1), unsigned(own), 1);
            exchange.send(
                reinterpret_cast<unsigned long long*>(place(product, row, slot, unit & ~1)),
                unit % 2 ? other | own << 32 : own | (unsigned long long)other << 32,
                unit / of_slice(product), unit % 2, step);
            return 0;
        } else
#pragma unroll
        for (int k = 0; k < COUNT; ++k) {
            const int j = COUNT * (unit - this->first_unit) + k;
            W* const to = reinterpret_cast<W*>(place(product, row, slot, j));
            A number = rounded<T>(v[k]);
#pragma unroll
            for (int n = 0; n < OF_NUMBER; ++n)
                exchange.send(to + n, word_of(array_of<R>(number)[n]), j / of_slice(product));
        }
        return unit + 1 == H ? COUNT * OF_NUMBER * H : 0;
    }
    template <int WIDTH, typename Product, typename Row>
    __device__ __forceinline__ void multiply(
        const Exchange& exchange, Product product, Row row, int rows, int count, A* sums) const
    {
        const auto& m = matrices[product];
        const int lane = threadIdx.x % 32, begin = this->slice * of_slice(product);
        const A* mine = vectors;
        if constexpr (Exchange::SHARED) mine = place(product, row, 0, begin);
        else {
            const int PACKS = of_slice(product) / P, ALL = ROWS * PACKS;
#pragma unroll 1
            for (int n = lane; n < ALL; n += 32 * LOOKS) {
                Words<W> found[LOOKS] = {};
                unsigned wanted = 0;
#pragma unroll
                for (int i = 0; i < LOOKS; ++i) {
                    const int at = n + 32 * i, slot = at / PACKS, k = begin + at % PACKS * P;
                    wanted |= (unsigned)(at < ALL && slot < rows && k < count) << i;
                }
                auto from = [&](int i) {
                    const int at = n + 32 * i;
                    return reinterpret_cast<Words<W>*>(
                        row(at / PACKS) + (begin + at % PACKS * P) * int(sizeof(A)));
                };
                look(found, from, wanted);
                wait_for(found, from, over);
#pragma unroll
                for (int i = 0; i < LOOKS; ++i) {
                    const int at = n + 32 * i;
                    if (at < ALL)
                        *reinterpret_cast<Words<W>*>(
                            vectors + at / PACKS * m.LENGTH + m.place(at % PACKS * P)) = found[i];
                }
            }
        }
        __syncwarp();  // before the product
        const int SHARE = m.LANES / SPLIT, item = lane % m.LANES;
        A* const to = sums + (item / SHARE) * row_of(WIDTH)
            + (lane / m.LANES * SHARE + item % SHARE) * WIDTH;
#pragma unroll 1
        for (int slot = 0; slot < ROWS; slot += AT_ONCE) {
            A of_item[WIDTH];
            m.template product<AT_ONCE>(
                mine + slot * m.LENGTH + lane % m.LANES * m.STRIDE, of_item);
            if (item < AT_ONCE * SHARE)
#pragma unroll
                for (int c = 0; c < WIDTH; ++c)
                    exchange.store_sum(to + slot * row_of(WIDTH) + c, of_item[c]);
        }
    }
};

#ifdef MMA_TYPE
#ifndef CUDA_ON_CPU
template <typename T>
__device__ __forceinline__ void mma(
    float (&d)[4], const unsigned (&a)[4], unsigned b0, unsigned b1)
{
    asm volatile(  // volatile, so that it stays where all lanes are
        "mma.sync.aligned.m16n8k16.row.col.f32." MMA_TYPE "." MMA_TYPE ".f32 "
        "{%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
        : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}
#endif

template <typename T, int PIECES> struct Fragments {
    static const int AT_ONCE = 4, LENGTH = 64 * AT_ONCE;  // of the memory to load them, by warp
    unsigned a[PIECES][2][4];

    // value(p, u, k) is the number in column k of the row of the warp's unit u, in piece p.
    template <typename Value>
    __device__ __forceinline__ void load(Words<unsigned>* memory, int g, int q, Value value)
    {
        // Through shared memory and in a loop: with the addresses of all its numbers at once a
        // lane would run out of registers.
        Words<unsigned>* const mine = memory + threadIdx.x / 32 * LENGTH;
        T* const numbers = reinterpret_cast<T*>(mine);
        const int lane = threadIdx.x % 32;
#pragma unroll
        for (int first = 0; first < PIECES; first += AT_ONCE) {
#pragma unroll 1
            for (int p = first; p < PIECES && p < first + AT_ONCE; ++p)
#pragma unroll
                for (int n = 0; n < 16; ++n) {
                    const int u = lane % 16, k = 2 * n + lane / 16;
                    numbers[(16 * (p - first) + u) * 32 + k] = value(p, u, k);
                }
            __syncthreads();
#pragma unroll
            for (int p = first; p < PIECES && p < first + AT_ONCE; ++p)
#pragma unroll
                for (int u = 0; u < 2; ++u) {
                    const Words<unsigned> x = mine[(16 * (p - first) + 2 * g + u) * 4 + q];
#pragma unroll
                    for (int n = 0; n < 4; ++n) a[p][n / 2][n % 2 * 2 + u] = x.w[n];
                }
            __syncthreads();
        }
    }
};

template <
    typename Exchange, typename C, typename T, bool BACK, int OF_BLOCK, int SEQUENCES, int THREADS,
    int CHUNKS, int CHUNKS_2 = 0>
struct ByTensorCores : Share<Exchange, OF_BLOCK> {
    typedef float A;
    typedef T N;
    typedef T E;
    typedef unsigned W;
    static const int UNITS = OF_BLOCK, ROWS = SEQUENCES, WARPS = THREADS / 32;
    static_assert(ROWS == 8 && UNITS % 16 == 0, "the size of a product");
    static const int MESSAGE = sizeof(W);
    static const int LAST = C::PRODUCTS - 1;
    static __device__ constexpr int width(int p) { return BACK ? 1 : C::width(p); }
    // Whole words.
    static __device__ constexpr int numbers(int width) { return width == 3 ? 4 : width; }
    static __device__ constexpr int row_of(int width) { return width * UNITS + 4; }
    static __device__ constexpr int pieces(int p) { return width(p) * UNITS / 16; }
    typedef Fragments<T, pieces(0) * CHUNKS> First;
    typedef Fragments<T, pieces(LAST) * larger_of(CHUNKS_2, 1)> Second;
    static const int MEMORY = WARPS * First::LENGTH * 16;  // while the matrices are loaded
    OfProducts<First, Second> matrices;
    Words<unsigned>* memory;
    bool patient;
    unsigned* over;

    __device__ __forceinline__ ByTensorCores(uint4* shared, bool is_patient, unsigned* in_a_trial)
        : memory(reinterpret_cast<Words<unsigned>*>(shared)), patient(is_patient),
          over(in_a_trial) {}
    static __device__ __forceinline__ T to_operand(T v) { return v; }
    template <int NUMBER> static __device__ constexpr int of_slice(Product<NUMBER>)
    {
        return 32 * (NUMBER ? CHUNKS_2 : CHUNKS);
    }
    template <typename Product, typename Value>
    __device__ __forceinline__ void load(Product product, Value value)
    {
        constexpr int NUMBER = Product::NUMBER, WIDTH = width(NUMBER), COUNT = C::width(NUMBER);
        const int begin = this->slice * of_slice(product), lane = threadIdx.x % 32;
        matrices[product].load(memory, lane / 4, lane % 4, [&](int p, int row, int k) -> T {
            row += p % pieces(NUMBER) * 16;
            k = this->number(begin + p / pieces(NUMBER) * 32 + k, BACK ? numbers(COUNT) : 1);
            const int unit = this->owner * UNITS + row / WIDTH;
            if (!BACK) return value(product, k, unit, row % WIDTH);
            const int column = k % numbers(COUNT);
            if (column >= COUNT) return T(0.f);
            return value(product, k / numbers(COUNT) * COUNT + column, unit, 0);
        });
    }
    template <int COUNT, typename Product, typename Row>
    __device__ __forceinline__ int send_unit(
        const Exchange& exchange, Product product, Row row, int slot, int unit, int H,
        const float* v) const
    {
        unsigned* const to = reinterpret_cast<unsigned*>(row(slot));
        const int own = unit - this->first_unit;
        if constexpr (COUNT == 1) {
            // The lanes of two neighboring units make a word, if there are both. In a cluster each
            // sends it to every other block.
            const int lane = threadIdx.x % 32, step = (unit | 1) < H ? 2 : 1;
            unsigned word = half_word_of<T>(v[0]), next = 0;
            if (step == 2) next = __shfl_xor_sync(3u << (lane & ~1), word, 1);
            word = unit % 2 ? next | word << 16 : word | next << 16;
            if ((!Exchange::SHARED || Exchange::SUMS) && unit % 2) return 0;
            exchange.send(to + own / 2, word, own / of_slice(product), unit % 2, step);
            return unit + 2 >= H ? own / 2 + 1 : 0;
        } else {
            const int OF_UNIT = numbers(COUNT) / 2;
#pragma unroll
            for (int n = 0; n < OF_UNIT; ++n)
                exchange.send(
                    to + OF_UNIT * own + n,
                    half_word_of<T>(v[2 * n])
                        | (2 * n + 1 < COUNT ? half_word_of<T>(v[(2 * n + 1) % COUNT]) : 0) << 16,
                    0);
            return unit + 1 == H ? OF_UNIT * H : 0;
        }
    }
    // The places of a lane's numbers in a vector, and which of them exist.
    template <typename Product, typename Row>
    __device__ __forceinline__ auto places(Product product, Row row) const
    {
        const int begin = this->slice * of_slice(product) + 8 * (threadIdx.x % 4);
        char* const here = row(threadIdx.x % 32 / 4);
        return [=](int n) {
            return reinterpret_cast<Words<unsigned>*>(here + (begin + 32 * n) * 2);
        };
    }
    template <typename Product>
    __device__ __forceinline__ unsigned wanted(Product product, int rows, int count) const
    {
        const int begin = this->slice * of_slice(product) + 8 * (threadIdx.x % 4);
        const int g = threadIdx.x % 32 / 4;
        unsigned some = 0;
#pragma unroll
        for (int n = 0; n < of_slice(product) / 32; ++n)
            some |= (unsigned)(g < rows && begin + 32 * n < count) << n;
        return some;
    }
    template <int WIDTH, typename Product, typename Row>
    __device__ __forceinline__ void multiply(
        const Exchange& exchange, Product product, Row row, int rows, int count, float* sums) const
    {
        const int COUNT = of_slice(product) / 32;
        auto place = places(product, row);
        Words<unsigned> found[COUNT] = {};
        if constexpr (Exchange::SHARED)
#pragma unroll
            for (int n = 0; n < COUNT; ++n) found[n] = *place(n);
        else {
            const unsigned some = wanted(product, rows, count);
            if (patient) {
                Words<unsigned> one[1] = {};
                look(one, place, some & 1);
                wait_for(one, place, over);
            }
            look(found, place, some);
            wait_for(found, place, over);
        }
        sums_of<WIDTH>(exchange, product, found, sums);
    }
    template <int WIDTH, typename Product, int COUNT>
    __device__ __forceinline__ void sums_of(
        const Exchange& exchange, Product product, const Words<unsigned> (&found)[COUNT],
        float* sums) const
    {
        const int PIECES = pieces(Product::NUMBER);
        // Two partial sums if there are few sums, so that products do not wait for each other.
        const int PARTS = WIDTH < 4 ? 2 : 1;
        const auto& m = matrices[product];
        const int lane = threadIdx.x % 32, g = lane / 4, q = lane % 4;
        __syncwarp();  // before the product
        float part[PIECES * PARTS][4] = {};
#pragma unroll
        for (int n = 0; n < COUNT; ++n)
#pragma unroll
            for (int t = 0; t < PIECES; ++t) {
                const auto& a = m.a[n * PIECES + t];
                mma<T>(part[t * PARTS], a[0], found[n].w[0], found[n].w[1]);
                mma<T>(part[t * PARTS + PARTS - 1], a[1], found[n].w[2], found[n].w[3]);
            }
#pragma unroll
        for (int t = 0; t < PIECES; ++t)
#pragma unroll
            for (int r = 0; r < 2; ++r) {
                float both[2];
#pragma unroll
                for (int u = 0; u < 2; ++u) {
                    both[u] = part[t * PARTS][2 * u + r];
                    if (PARTS == 2) both[u] += part[t * PARTS + 1][2 * u + r];
                }
                exchange.store_sum(
                    reinterpret_cast<float2*>(sums + (2 * q + r) * row_of(WIDTH) + 16 * t + 2 * g),
                    make_float2(both[0], both[1]));
            }
    }
};
#endif
"""
)
