/* tokenizer_parts.h - shared by the files of the tokenizer; only tokenizer*.c include it.
 *
 * A text goes through four parts, each a struct here:
 *   added   finds added tokens in the raw text, then (after NFC) those that want normalized text
 *   split   cuts what lies between them into words by the pre-tokenizer's stages
 *   bpe     turns a word into ids by merging the pair of lowest rank first, through a cache of words
 *   ids     gathers them
 * Ownership: struct tokenizer owns all tables; they are immutable after parse. A call changes nothing but
 * its own *_work structs. Threads: any, each with its own work.
 */
#ifndef TOKENIZER_PARTS_H
#define TOKENIZER_PARTS_H

#include "tokenizer.h"

#include <jansson.h>

#define TOKENIZER_MAX_IDS (1u << 22) /* ids index a table: bounds what a file can make us allocate */

/* ---- ids: a growing array ---- */
struct ids {
    int32_t *v;
    size_t n, cap;
};
int ids_reserve(struct ids *ids, size_t n_more); /* 0 or ROD_ENOMEM */

/* ---- bpe ---- */
struct bpe_merge {
    uint64_t key; /* left id << 32 | right id; BPE_NO_KEY = free */
    uint32_t rank;
    int32_t id;
};

struct bpe {
    int32_t byte_id[256];     /* -1: no such token; only bytes that UTF-8 never has */
    struct bpe_merge *merges; /* open addressed, at most half full */
    uint32_t merge_mask;
    bool ignore_merges; /* a word that is a token is that token */
    int32_t *words;     /* ignore_merges: ids, open addressed by the hash of their bytes; -1 = free */
    uint32_t word_mask;
    const struct token *tokens; /* borrowed from the tokenizer */
    const char *blob;
};

struct bpe_symbol {
    int32_t id; /* -1: merged into its left neighbour */
    uint32_t prev, next;
};

struct bpe_cached {
    uint64_t hash;
    uint32_t text, len; /* the word, in arena; len 0 = free */
    uint32_t n_ids;
    size_t ids; /* where the ids of its first occurrence are in the output: they are not stored twice */
};

struct bpe_work {
    struct ids out;
    struct bpe_symbol *symbols;
    size_t cap_symbols;
    uint64_t *heap; /* rank << 32 | position of the left symbol */
    size_t cap_heap;
    struct bpe_cached *cache;
    uint32_t cache_mask, n_cached;
    char *arena;
    uint32_t arena_len, arena_cap;
};

int bpe_init(struct bpe *bpe, size_t n_merges); /* an empty table with room for n_merges */
void bpe_fini(struct bpe *bpe);
void bpe_add_merge(struct bpe *bpe, int32_t left, int32_t right, uint32_t rank, int32_t id); /* the last one wins */
int bpe_index_words(struct bpe *bpe, const bool *usable, size_t n_tokens);                   /* for ignore_merges */
int bpe_encode(const struct bpe *bpe, struct bpe_work *work, const char *word, size_t len);  /* appends to work->out */
void bpe_work_fini(struct bpe_work *work); /* all but out.v, which is the call's result */

/* ---- split ---- */
#define SPLIT_MAX_STAGES 8

struct split_stage {
    void *code;            /* pcre2_code, NULL: this stage does not split */
    unsigned char *letter; /* of each character, what code sees in its place; NULL: code sees the text */
    bool jit;
    bool drop_match, drop_gap; /* behavior Removed, and Removed with invert */
    bool prefix_space;         /* ByteLevel's add_prefix_space */
};

struct split {
    struct split_stage stage[SPLIT_MAX_STAGES];
    uint32_t n_stages;
};

struct split_work {
    void *match, *context; /* pcre2_match_data, pcre2_match_context; made when first needed */
    struct {
        char *v;
        size_t cap;
    } letters[SPLIT_MAX_STAGES]; /* the piece that each stage is cutting */
    int (*word)(void *arg, const char *word, size_t len);
    void *arg;
};

int split_init(struct split *split, const json_t *pre_tokenizer, struct rod_error *err);
void split_fini(struct split *split);
/* Calls work->word for every word of a section, in order. The words are valid during the call only. */
int split_run(const struct split *split, struct split_work *work, const char *text, size_t len, struct rod_error *err);
void split_work_fini(struct split_work *work);

/* ---- patterns ---- */
#define LETTERS_MAX_SETS 250

struct letters_range {
    uint32_t first, last;
};
struct letters_set { /* of characters; in order and apart after letters_tidy */
    struct letters_range *v;
    size_t n, cap;
    bool failed; /* memory was short */
};
struct letters {
    struct letters_set set[LETTERS_MAX_SETS]; /* no two the same */
    size_t n;
    unsigned char *letter; /* of each character */
    uint32_t like[256];    /* of each letter, one character that it stands for */
    uint32_t n_letters;
};

void letters_add(void *set, uint32_t first, uint32_t last); /* to a struct letters_set: a range for unicode_property */
void letters_add_all(struct letters_set *set, const struct letters_set *from);
void letters_words(struct letters_set *set); /* Alphabetic, marks, decimal digits, connectors */
void letters_tidy(struct letters_set *set);
/* Of a tidy set: what it lacks; what is one with a member when case is ignored, added. */
void letters_invert(struct letters_set *set);
void letters_fold(struct letters_set *set);
bool letters_has(const struct letters_set *set, uint32_t c);
int letters_take(struct letters *l, struct letters_set *set); /* its number; the set is the letters'. -1: too many */
int letters_make(struct letters *l, struct rod_error *err);
bool letters_in(const struct letters *l, int set, uint32_t letter);
void letters_fini(struct letters *l);

/* Rewrites an Oniguruma pattern (what the reference implementation runs) as one of bytes for PCRE2 over letters; both
 * malloc'd. What the two read differently is ROD_EUNSUPPORTED with the construct named. */
struct regex_letters {
    char *text;
    size_t n;
    uint32_t *from; /* for each byte of text, and its end: where its construct begins in the pattern */
    unsigned char *letter;
};
int regex_translate(const char *pattern, size_t len, struct regex_letters *out, struct rod_error *err);

/* ---- added tokens ---- */
struct added_token {
    int32_t id;
    uint32_t text, len; /* what is searched, in the tokenizer's blob */
    bool special, single_word, lstrip, rstrip;
};

struct added_node {          /* a trie: children are linked lists, but the first level is a table */
    uint32_t child, sibling; /* 0 = none */
    int32_t token;           /* index of the added token that ends here, -1 = none */
    unsigned char byte;
};

struct added {
    struct added_token *tokens;
    uint32_t n_tokens, cap_tokens;
    struct added_node *nodes; /* nodes[0] is not used */
    uint32_t n_nodes, cap_nodes;
    uint32_t root[256];
    struct letters_set words; /* what a single_word token may not touch; empty without such tokens */
};

/* A stretch of text to search. run[i].end are offsets into the whole text, of which text is the part at base. */
struct added_run {
    size_t end;
    bool special;
};
struct added_view {
    const char *text;
    size_t len, base;
    const struct added_run *run; /* neighbours differ in special */
    size_t n_runs;
};
struct added_match {
    size_t start, end;         /* spaces taken by lstrip and rstrip included; start == end: no token */
    size_t resume;             /* where the search goes on: at most end */
    size_t spaces, spaces_end; /* the last white space that rstrip looked through */
    int32_t id;
};

int added_insert(struct added *added, const struct added_token *token, const char *text);
/* The run that a position of the view is in, by halving: a chat has many; n_runs past the last. */
size_t added_run_at(const struct added_view *view, size_t pos);
/* From one match, or from zeros, to the next: the leftmost, then longest, token. */
bool added_find(const struct added *added, const struct added_view *view, struct added_match *m);
void added_fini(struct added *added);

/* ---- the whole ---- */
struct token {
    uint32_t bytes, len; /* in blob */
    bool present, special;
};

struct tokenizer {
    char *blob; /* bytes of every token, and the searched form of added tokens */
    uint32_t blob_len, blob_cap;
    struct token *tokens;
    uint32_t n_ids;
    struct bpe bpe;
    struct split split;
    struct added raw, normalized; /* searched before and after normalization */
    bool nfc;
    int32_t prefix[4]; /* what the post-processor puts before a text, mostly nothing */
    uint32_t n_prefix;
    int32_t eos_id; /* of eos_token, or TOKENIZER_NO_... */
};

#endif
