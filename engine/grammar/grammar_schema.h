/* grammar_schema.h - the inside of the compiler of schemas: what its files share. All of it is pure and has one owner,
 * ir_schema() in grammar_schema.c. A function that fails says so in the ir and returns IR_NOTHING or NULL. */
#ifndef GRAMMAR_SCHEMA_H
#define GRAMMAR_SCHEMA_H

#include "grammar_ir.h"

#include <jansson.h>

enum {
    SCHEMA_MAX_NESTING = 64,
    SCHEMA_MAX_SEEN = 1 << 16,
    SCHEMA_MAX_REFS = 4096,
    SCHEMA_MAX_CHOICES = 1000 /* optional properties in a row, alternatives that are no words: what one state holds */
};

enum { /* types of JSON */
       T_NULL = 1,
       T_BOOLEAN = 2,
       T_INTEGER = 4,
       T_NUMBER = 8,
       T_STRING = 16,
       T_ARRAY = 32,
       T_OBJECT = 64,
       T_ALL = 127
};

enum {                  /* what a keyword is about, beside types */
       K_NOTE = 128,    /* says nothing about the text; so does every word that is not in the table */
       K_LIST = 256,    /* enum, const */
       K_COMBINE = 512, /* other schemas */
       K_TYPE = 1024,
       K_UNHELD = 2048 /* says something that no grammar here holds */
};

/* Why no value is valid: keywords that contradict each other, or one that allows nothing. */
struct schema_empty {
    char keyword[64], other[64]; /* empty: none */
    char why[320];               /* empty: the schema is the word false */
};

struct schema {
    struct ir *ir;
    const json_t *root;
    json_t *made; /* schemas that were joined or lightened: an array that owns them */
    struct {
        const json_t *target;
        uint32_t rule;
        bool open, recurs; /* its schema is being compiled; and leads back to itself */
    } refs[SCHEMA_MAX_REFS];
    size_t n_refs, n_seen; /* n_seen: schemas looked at, again ones too */
    int depth;
    bool weaken, strict;                      /* a schema of arguments; else the text may be anything */
    const json_t *joined[SCHEMA_MAX_NESTING]; /* by a $ref beside other keywords, about the value at hand */
    int joined_from, n_joined;                /* [joined_from, n_joined) are about this value */
    uint32_t (*any)(struct schema *s, const json_t *schema); /* a schema in this one */
    char fault[64];                                          /* the keyword that the failure is about; empty: none */
    struct schema_empty empty;                               /* of the schema that was compiled last */
    char path[160];                                          /* where the schema stands, as a JSON pointer */
};

/* grammar_schema_base.c */
uint32_t schema_refuse(struct schema *s, const char *keyword, const char *what);
uint32_t schema_refuse_part(struct schema *s, const char *keyword); /* a part of it failed, and said why */
/* IR_NOTHING: no value is valid, by this keyword, and where another contradicts it by both; either may be NULL. */
uint32_t schema_empty(struct schema *s, const char *keyword, const char *other, const char *what);
/* A schema in this one, by its keyword there and, of several, its name. */
uint32_t schema_below(struct schema *s, const json_t *schema, const char *keyword, const char *name);
uint32_t schema_item_below(struct schema *s, const json_t *schema, const char *keyword, size_t i);
uint32_t schema_rule_with(struct schema *s, uint32_t body);
const char *schema_text(const json_t *value);                   /* NULL: no string, or one with U+0000 */
uint32_t schema_literal(struct schema *s, const json_t *value); /* a value as it is written, without white space */
/* A count of at most 65535. false: the error is set. */
bool schema_read_count(struct schema *s, const json_t *schema, const char *keyword, uint32_t *out);
bool schema_lists(const char *names, const char *name); /* names: with blanks between */
unsigned schema_keyword_about(const char *name);
unsigned schema_type_of_name(const char *name); /* 0: of no type; NULL is none */
unsigned schema_type_of(const json_t *value);
unsigned schema_types(const json_t *schema); /* that type, const and enum leave */

/* grammar_schema_number.c */
bool value_is_exact(const json_t *value);
uint32_t schema_refuse_inexact(struct schema *s, const char *keyword);
uint32_t schema_number(struct schema *s, const json_t *schema, bool integer);

/* grammar_schema_string.c, grammar_schema_array.c, grammar_schema_object.c */
uint32_t schema_string(struct schema *s, const json_t *schema);
uint32_t schema_array(struct schema *s, const json_t *schema);
uint32_t schema_object(struct schema *s, const json_t *schema);

/* grammar_schema_join.c: several schemas about one value */
const json_t *schema_target(struct schema *s, const json_t *ref);                    /* that a $ref leads to */
const json_t *schema_join(struct schema *s, const json_t *one, const json_t *other); /* what both allow */
bool schemas_are_apart(struct schema *s, const json_t *list);                        /* no value is of two of them */

#endif
