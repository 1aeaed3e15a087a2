// It declares what the package calls as cuDNN's manual does, writes down the arguments, and does to
// memory what cuDNN does: fills the outputs but not the padding, adds to the gradient of the
// parameters, and refuses a reserve space that is not in the state that the call needs.

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <sstream>
#include <string>

struct Descriptor { std::string kind, text; int type = 0, T = 0, B = 0, V = 0, lengths[1024] = {};
                    int dims[3] = {}; int sizes[4] = {}; size_t bytes = 0;
                    int algo = 0, built = 0;
                    unsigned char* states = nullptr; Descriptor* dropout = nullptr; };
typedef Descriptor* cudnnDropoutDescriptor_t;
typedef Descriptor* cudnnRNNDescriptor_t;
typedef Descriptor* cudnnRNNDataDescriptor_t;
typedef Descriptor* cudnnTensorDescriptor_t;
typedef void* cudnnHandle_t;
typedef void* cudaStream_t;
typedef int cudnnStatus_t;

static std::string calls, failing, message;
static int failure, alive;
static intptr_t handles;
enum { BAD_PARAM = 2000, EXECUTION_FAILED = 5000 };

static std::string shown(const Descriptor* d) { return d ? '"' + d->text + '"' : "null"; }
static std::string shown(double v) { std::ostringstream s; s << v; return s.str(); }
static std::string shown(const void* p) { return std::to_string((uintptr_t)p); }
static std::string shown(void* p) { return shown((const void*)p); }
static std::string shown(int v) { return std::to_string(v); }
static std::string shown(unsigned v) { return std::to_string(v); }
static std::string shown(size_t v) { return std::to_string(v); }
static std::string shown(unsigned long long v) { return std::to_string(v); }
static std::string rest(std::string names) { return ""; }
template <class A, class... More>
static std::string rest(std::string names, A a, More... more) {
    size_t end = names.find(' ');
    std::string next = end == std::string::npos ? "" : names.substr(end + 1);
    return (next.empty() && sizeof...(more) ? "TOO FEW NAMES" : "") + std::string(", \"")
        + names.substr(0, end) + "\": " + shown(a) + rest(next, more...);
}
template <class... A>
static int record(const char* name, const char* names, A... a) {
    calls += std::string(calls.empty() ? "" : ",\n") + "{\"call\": \"" + name + "\""
        + rest(names, a...) + "}";
    message = name == failing ? "  what \n was wrong " : "";
    return name == failing ? failure : 0;
}

extern "C" {
const char* stub_calls() { static std::string all; all = "[" + calls + "]"; return all.c_str(); }
void stub_reset() { calls.clear(); failing.clear(); }
void stub_fail(const char* name, int status) { failing = name; failure = status; }
int stub_alive() { return alive; }

size_t cudnnGetVersion() { return 91301; }
const char* cudnnGetErrorString(cudnnStatus_t status) { return "CUDNN_STATUS_OF_THE_STUB"; }
void cudnnGetLastErrorString(char* out, size_t size) { strncpy(out, message.c_str(), size); }

cudnnStatus_t cudnnCreate(cudnnHandle_t* handle) {
    *handle = (void*)(0x5EED00 + ++handles);
    return record("cudnnCreate", "handle", *handle);
}
cudnnStatus_t cudnnDestroy(cudnnHandle_t handle) {
    return record("cudnnDestroy", "handle", handle);
}
cudnnStatus_t cudnnSetStream(cudnnHandle_t handle, cudaStream_t stream) {
    return record("cudnnSetStream", "handle stream", handle, stream);
}

#define DESCRIPTOR(K) \
cudnnStatus_t cudnnCreate##K##Descriptor(cudnn##K##Descriptor_t* d) { \
    int status = record("cudnnCreate" #K "Descriptor", "at", (void*)d); \
    if (!status) { *d = new Descriptor; (*d)->kind = #K; alive++; } \
    return status; } \
cudnnStatus_t cudnnDestroy##K##Descriptor(cudnn##K##Descriptor_t d) { \
    if (d->kind != #K) return BAD_PARAM; \
    delete d; alive--; return record("cudnnDestroy" #K "Descriptor", "d", (void*)d); }
DESCRIPTOR(Dropout)
DESCRIPTOR(RNN)
DESCRIPTOR(RNNData)
DESCRIPTOR(Tensor)

cudnnStatus_t cudnnDropoutGetStatesSize(cudnnHandle_t handle, size_t* size) {
    *size = 64;
    return record("cudnnDropoutGetStatesSize", "handle", handle);
}
cudnnStatus_t cudnnSetDropoutDescriptor(cudnnDropoutDescriptor_t d, cudnnHandle_t handle,
        float rate, void* states, size_t size, unsigned long long seed) {
    if (d->kind != "Dropout" || (states && size != 64)) return BAD_PARAM;
    d->text = "rate " + shown((double)rate) + (states ? " seeded" : "");
    d->states = (unsigned char*)states;
    if (states) memset(states, seed % 127, size);
    return record("cudnnSetDropoutDescriptor", "handle rate states size seed", handle,
        (double)rate, states, size, seed);
}
cudnnStatus_t cudnnRestoreDropoutDescriptor(cudnnDropoutDescriptor_t d, cudnnHandle_t handle,
        float rate, void* states, size_t size, unsigned long long seed) {
    if (d->kind != "Dropout" || !states || size != 64) return BAD_PARAM;
    d->text = "rate " + shown((double)rate) + " restored";
    d->states = (unsigned char*)states;
    return record("cudnnRestoreDropoutDescriptor", "handle rate states size seed", handle,
        (double)rate, states, size, seed);
}
cudnnStatus_t cudnnSetRNNDescriptor_v8(cudnnRNNDescriptor_t d, int algo, int cellMode,
        int biasMode, int dirMode, int inputMode, int dataType, int mathPrec, int mathType,
        int32_t inputSize, int32_t hiddenSize, int32_t projSize, int32_t numLayers,
        cudnnDropoutDescriptor_t dropoutDesc, uint32_t auxFlags) {
    if (d->kind != "RNN" || dropoutDesc->kind != "Dropout") return BAD_PARAM;
    std::ostringstream s;
    s << "algo " << algo << " cell " << cellMode << " bias " << biasMode << " dir " << dirMode
      << " input " << inputMode << " data " << dataType << " prec " << mathPrec << " math "
      << mathType << " I " << inputSize << " H " << hiddenSize << " P " << projSize << " L "
      << numLayers << " dropout " << dropoutDesc->text << " flags " << auxFlags;
    d->text = s.str(); d->dropout = dropoutDesc; d->type = dataType; d->algo = algo;
    size_t G = cellMode == 2 ? 4 : cellMode == 3 ? 3 : 1, D = 1 + dirMode, H = hiddenSize;
    size_t P = projSize, size = 0;
    for (int l = 0; l < numLayers; l++) {
        size_t K = l ? D * P : inputMode ? 0 : inputSize;
        size += D * (G * H * (K + P) + (P != H ? P * H : 0) + 2 * G * H);
    }
    int out = (1 + dirMode) * projSize;
    int sizes[] = {inputSize, out, projSize, hiddenSize};
    memcpy(d->sizes, sizes, sizeof sizes);
    d->bytes = size * (dataType == 0 ? 4 : dataType == 1 ? 8 : 2);
    return record("cudnnSetRNNDescriptor_v8", "rnn", d);
}
cudnnStatus_t cudnnBuildRNNDynamic(cudnnHandle_t handle, cudnnRNNDescriptor_t rnn, int miniBatch) {
    if (rnn->kind != "RNN" || rnn->algo != 2) return BAD_PARAM;
    rnn->built = miniBatch;
    return record("cudnnBuildRNNDynamic", "handle rnn miniBatch", handle, rnn, miniBatch);
}
cudnnStatus_t cudnnSetRNNDataDescriptor(cudnnRNNDataDescriptor_t d, int dataType, int layout,
        int maxT, int B, int V, const int seqLengths[], void* paddingFill) {
    if (d->kind != "RNNData" || !paddingFill || B > 1024) return BAD_PARAM;
    std::ostringstream s;
    s << "data " << dataType << " layout " << layout << " T " << maxT << " B " << B << " V " << V
      << " fill " << *(uint64_t*)paddingFill << " lengths";
    for (int b = 0; b < B; b++) s << " " << (d->lengths[b] = seqLengths[b]);
    d->text = s.str(); d->type = dataType; d->T = maxT; d->B = B; d->V = V;
    return record("cudnnSetRNNDataDescriptor", "data", d);
}
cudnnStatus_t cudnnSetTensorNdDescriptor(cudnnTensorDescriptor_t d, int dataType, int rank,
        const int dims[], const int strides[]) {
    if (d->kind != "Tensor" || rank != 3) return BAD_PARAM;
    std::ostringstream s;
    s << "data " << dataType << " dims";
    for (int i = 0; i < 3; i++) s << " " << (d->dims[i] = dims[i]);
    s << " strides";
    for (int i = 0; i < 3; i++) s << " " << strides[i];
    d->text = s.str(); d->type = dataType;
    return record("cudnnSetTensorNdDescriptor", "tensor", d);
}
cudnnStatus_t cudnnGetRNNWeightSpaceSize(cudnnHandle_t handle, cudnnRNNDescriptor_t rnn,
        size_t* size) {
    *size = rnn->bytes;
    return record("cudnnGetRNNWeightSpaceSize", "handle rnn", handle, rnn);
}
static const size_t WORK = 40, RESERVE = 37;
cudnnStatus_t cudnnGetRNNTempSpaceSizes(cudnnHandle_t handle, cudnnRNNDescriptor_t rnn, int mode,
        cudnnRNNDataDescriptor_t x, size_t* work, size_t* reserve) {
    *work = WORK; *reserve = RESERVE;  // in inference it need not be there
    return record("cudnnGetRNNTempSpaceSizes", "handle rnn mode xDesc", handle, rnn, mode, x);
}

static void put(int type, void* a, size_t i, double v, bool add = false) {
    if (type == 0) ((float*)a)[i] = add ? ((float*)a)[i] + v : v;
    else if (type == 1) ((double*)a)[i] = add ? ((double*)a)[i] + v : v;
    else {  // only zero can be added to
        uint16_t one = type == 2 ? 0x3C00 : 0x3F80, *to = (uint16_t*)a + i;
        *to = add && *to ? 0xFFFF : v == 1 ? one : v == 2 ? 0x4000 : 0xFFFF;
    }
}
static void sequences(Descriptor* d, void* a) {
    for (int t = 0; t < d->T; t++) for (int b = 0; b < d->B; b++)
        for (int v = 0; v < d->V && t < d->lengths[b]; v++)
            put(d->type, a, ((size_t)t * d->B + b) * d->V + v, 1);
}
static void states(Descriptor* d, Descriptor* x, void* a) {
    for (int r = 0; r < d->dims[0]; r++) for (int b = 0; b < d->dims[1]; b++)
        for (int v = 0; v < d->dims[2] && a; v++)
            put(d->type, a, ((size_t)r * d->dims[1] + b) * d->dims[2] + v,
                x->lengths[b] ? 2 : 0.0 / 0.0);
}
static bool all(const void* a, size_t n, int v) {
    for (size_t i = 0; i < n; i++) if (((const unsigned char*)a)[i] != v) return false;
    return true;
}
static std::string read(const int32_t* lengths, Descriptor* d) {
    std::string s;
    for (int b = 0; lengths && b < d->B; b++) s += (b ? " " : "") + std::to_string(lengths[b]);
    return s;
}
#define CHECKED(reserve) \
    Descriptor dev, *on_device = &dev; \
    if (xDesc->kind != "RNNData" || yDesc->kind != "RNNData" || hDesc->kind != "Tensor" \
        || xDesc->type != rnn->type || yDesc->type != rnn->type || hDesc->type != rnn->type \
        || xDesc->V != rnn->sizes[0] || yDesc->V != rnn->sizes[1] \
        || hDesc->dims[2] != rnn->sizes[2] || wSize != rnn->bytes || workSize < WORK || !workSize || !work \
        || (rnn->algo == 2 && rnn->built != xDesc->B) \
        || resSize != (reserve)) return BAD_PARAM; \
    dev.text = read(devSeqLengths, xDesc);

cudnnStatus_t cudnnRNNForward(cudnnHandle_t handle, cudnnRNNDescriptor_t rnn, int mode,
        const int32_t devSeqLengths[], cudnnRNNDataDescriptor_t xDesc, const void* x,
        cudnnRNNDataDescriptor_t yDesc, void* y, cudnnTensorDescriptor_t hDesc, const void* hx,
        void* hy, cudnnTensorDescriptor_t cDesc, const void* cx, void* cy, size_t wSize,
        const void* w, size_t workSize, void* work, size_t resSize, void* res) {
    CHECKED(mode ? RESERVE : 0)
    if (cDesc && (cDesc->type != rnn->type || cDesc->dims[2] != rnn->sizes[3])) return BAD_PARAM;
    sequences(yDesc, y); states(hDesc, xDesc, hy);
    if (cDesc) states(cDesc, xDesc, cy);
    memset(work, 9, workSize);
    if (mode) memset(res, 1, resSize);
    // What the masks depend on; drawing them changes it.
    unsigned char* states = rnn->dropout->states;
    int drawn = states ? *states : -1;
    if (mode && states) memset(states, drawn + 1, 64);
    return record("cudnnRNNForward", "handle rnn mode lengths xDesc x yDesc y hDesc hx hy cDesc cx"
        " cy w work res drawn", handle, rnn, mode, on_device, xDesc, x, yDesc, y, hDesc, hx, hy,
        cDesc, cx, cy, w, work, res, drawn);
}
cudnnStatus_t cudnnRNNBackwardData_v8(cudnnHandle_t handle, cudnnRNNDescriptor_t rnn,
        const int32_t devSeqLengths[], cudnnRNNDataDescriptor_t yDesc, const void* y,
        const void* dy, cudnnRNNDataDescriptor_t xDesc, void* dx, cudnnTensorDescriptor_t hDesc,
        const void* hx, const void* dhy, void* dhx, cudnnTensorDescriptor_t cDesc, const void* cx,
        const void* dcy, void* dcx, size_t wSize, const void* w, size_t workSize, void* work,
        size_t resSize, void* res) {
    CHECKED(RESERVE)
    if (!all(res, resSize, 1)) return EXECUTION_FAILED;
    if (cDesc && (cDesc->type != rnn->type || cDesc->dims[2] != rnn->sizes[3])) return BAD_PARAM;
    memset(res, 2, resSize);
    sequences(xDesc, dx); states(hDesc, xDesc, dhx);
    if (cDesc) states(cDesc, xDesc, dcx);
    return record("cudnnRNNBackwardData_v8", "handle rnn lengths yDesc y dy xDesc dx hDesc hx dhy"
        " dhx cDesc cx dcy dcx w work res", handle, rnn, on_device, yDesc, y, dy, xDesc, dx, hDesc,
        hx, dhy, dhx, cDesc, cx, dcy, dcx, w, work, res);
}
cudnnStatus_t cudnnRNNBackwardWeights_v8(cudnnHandle_t handle, cudnnRNNDescriptor_t rnn,
        int addGrad, const int32_t devSeqLengths[], cudnnRNNDataDescriptor_t xDesc, const void* x,
        cudnnTensorDescriptor_t hDesc, const void* hx, cudnnRNNDataDescriptor_t yDesc,
        const void* y, size_t wSize, void* dw, size_t workSize, void* work, size_t resSize,
        void* res) {
    CHECKED(RESERVE)
    if (!all(res, resSize, 2)) return EXECUTION_FAILED;
    memset(res, 3, resSize);
    int size = xDesc->type == 0 ? 4 : xDesc->type == 1 ? 8 : 2;
    for (size_t i = 0; i < wSize / size; i++) put(xDesc->type, dw, i, 1, true);
    return record("cudnnRNNBackwardWeights_v8", "handle rnn addGrad lengths xDesc x hDesc hx yDesc"
        " y dw work res", handle, rnn, addGrad, on_device, xDesc, x, hDesc, hx, yDesc, y, dw, work,
        res);
}
}
