/* Memory of tensors between forbidden pages, for LD_PRELOAD: torch takes tensors from posix_memalign.
 *
 * A tensor lies at the end of its pages, or at their start, so that reading or writing one element beyond it ends the
 * process. The rest of its pages has a pattern, which is looked at when it is freed. Freed pages are forbidden, and
 * their addresses are not used again.
 *
 * A slot of the arena: a page with a note, a forbidden page, the tensor's pages, a forbidden page.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

extern void *__libc_memalign(size_t, size_t);
extern void __libc_free(void *);

#define PAGE ((size_t)4096)
#define ARENA ((size_t)1 << 42)
#define LARGEST ((size_t)64 << 20)
#define PATTERN 0xA5
#define MAGIC UINT64_C(0x6775617264656421)

struct note { uint64_t magic; char *start; size_t size, pages; };

static char *arena;
static size_t taken;
static int at_start, on;

/* Whether tensors are guarded from now on, and at which end of their pages they lie. */
void guard(int enabled, int start) { on = enabled; at_start = start; }

static void stop(const char *what) {
    if (write(2, what, strlen(what)) < 0) _exit(134);
    abort();
}

static void *guarded(size_t size) {
    if (!arena) {
        void *made = mmap(NULL, ARENA, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
        if (made == MAP_FAILED) return NULL;
        arena = made;
    }
    size_t kept = at_start ? size : (size + 15) & ~(size_t)15;
    size_t pages = (kept + PAGE - 1) / PAGE;
    size_t slot = __sync_fetch_and_add(&taken, (pages + 3) * PAGE);
    if (slot + (pages + 3) * PAGE > ARENA) stop("guard: no addresses left\n");
    char *data = arena + slot + 2 * PAGE;
    if (mprotect(arena + slot, PAGE, PROT_READ | PROT_WRITE)) return NULL;
    if (mprotect(data, pages * PAGE, PROT_READ | PROT_WRITE)) return NULL;
    memset(data, PATTERN, pages * PAGE);
    struct note *note = (struct note *)(arena + slot);
    note->magic = MAGIC;
    note->start = at_start ? data : data + pages * PAGE - kept;
    note->size = size;
    note->pages = pages;
    return note->start;
}

int posix_memalign(void **out, size_t alignment, size_t size) {
    int ours = on && size && size <= LARGEST && alignment <= 64;
    void *made = ours ? guarded(size) : __libc_memalign(alignment, size);
    if (!made) return ENOMEM;
    *out = made;
    return 0;
}

static void check(const char *from, const char *to) {
    for (; from < to; from++)
        if ((unsigned char)*from != PATTERN) stop("guard: written beyond a tensor\n");
}

void free(void *pointer) {
    char *p = pointer;
    if (!arena || p < arena || p >= arena + ARENA) { __libc_free(pointer); return; }
    char *data = (char *)((uintptr_t)p & ~(PAGE - 1));
    struct note *note = (struct note *)(data - 2 * PAGE);  /* forbidden, and the end of the process, if freed twice */
    if (note->magic != MAGIC || note->start != p) stop("guard: freed what was not given\n");
    char *end = data + note->pages * PAGE;
    check(data, p);
    check(p + note->size, end);
    size_t whole = (size_t)(end - (char *)note);
    mmap(note, whole, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED, -1, 0);
}
