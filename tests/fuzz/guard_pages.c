/*
Memory for NumPy's arrays that ends, or begins, at a page without rights.

Fresh memory is full of 0xff: NaN in every floating dtype. What is freed can no longer be read: its
pages lose their rights, and are given back when some hundred others were freed.
*/
#define _GNU_SOURCE
#include <pthread.h>
#include <search.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

typedef struct {
    char *data; /* what NumPy knows */
    size_t size;
    char *pages; /* from the page without rights in front to that behind */
    size_t bytes;
} Block;

enum { KEPT = 256 };
static Block *freed[KEPT];
static size_t next_freed, made;
static void *blocks; /* a tree by `data` */
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

static int by_data(const void *a, const void *b) {
    uintptr_t first = (uintptr_t)((const Block *)a)->data;
    uintptr_t second = (uintptr_t)((const Block *)b)->data;
    return (first > second) - (first < second);
}

static Block *find(void *data) {
    Block key = {.data = data};
    Block **found = tfind(&key, &blocks, by_data);
    if (!found) abort(); /* not ours, or freed twice */
    return *found;
}

static void *take(size_t size) {
    size_t page = (size_t)sysconf(_SC_PAGESIZE), room = (size + page - 1) / page * page;
    Block *block = malloc(sizeof *block);
    if (!room) room = page;
    if (!block) return NULL;
    block->size = size, block->bytes = room + 2 * page;
    block->pages = mmap(NULL, block->bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (block->pages == MAP_FAILED || mprotect(block->pages + page, room, PROT_READ | PROT_WRITE)) {
        free(block);
        return NULL;
    }
    memset(block->pages + page, 0xff, room);
    pthread_mutex_lock(&lock);
    /* Of four, three end at a page without rights: reading on is the more frequent fault. */
    block->data = block->pages + page + (made++ % 4 ? room - size : 0);
    tsearch(block, &blocks, by_data);
    pthread_mutex_unlock(&lock);
    return block->data;
}

static void give(void *data) {
    if (!data) return;
    pthread_mutex_lock(&lock);
    Block *block = find(data), *old = freed[next_freed];
    tdelete(block, &blocks, by_data);
    mprotect(block->pages, block->bytes, PROT_NONE);
    freed[next_freed] = block;
    next_freed = (next_freed + 1) % KEPT;
    pthread_mutex_unlock(&lock);
    if (old) {
        munmap(old->pages, old->bytes);
        free(old);
    }
}

static void *guarded_malloc(void *context, size_t size) {
    (void)context;
    return take(size);
}

static void *guarded_calloc(void *context, size_t count, size_t size) {
    void *data = take(count * size);
    (void)context;
    return data ? memset(data, 0, count * size) : NULL;
}

static void *guarded_realloc(void *context, void *old, size_t size) {
    void *data = take(size);
    (void)context;
    if (data && old) {
        pthread_mutex_lock(&lock);
        size_t before = find(old)->size;
        pthread_mutex_unlock(&lock);
        memcpy(data, old, before < size ? before : size);
        give(old);
    }
    return data;
}

static void guarded_free(void *context, void *data, size_t size) {
    (void)context, (void)size;
    give(data);
}

/* As NumPy's PyDataMem_Handler, version 1. */
struct {
    char name[127];
    uint8_t version;
    void *context;
    void *(*malloc)(void *, size_t);
    void *(*calloc)(void *, size_t, size_t);
    void *(*realloc)(void *, void *, size_t);
    void (*free)(void *, void *, size_t);
} handler = {
    "guard_pages", 1, NULL, guarded_malloc, guarded_calloc, guarded_realloc, guarded_free,
};
