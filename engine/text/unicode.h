/* unicode.h - properties of characters, of one version of Unicode (unicode_table.h says which) whatever the libraries
 * of the machine know. Pure functions, any thread.
 */
#ifndef UNICODE_H
#define UNICODE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define UNICODE_MAX 0x10ffffu

/* Calls range for the characters with a property, in order: a category ("L", "Lu"), "Any", or a script by its name or
 * its four letters ("Greek", "Grek"), case and "_" ignored. false: no such property, and no call. */
bool unicode_property(const char *name, void (*range)(void *arg, uint32_t first, uint32_t last), void *arg);

bool unicode_is_space(uint32_t c); /* White_Space */

/* The canonical composition (NFC) of a text, which is valid UTF-8; *out is malloc'd. O(n log n) whatever the marks.
 * false: out of memory. */
bool unicode_nfc(const char *text, size_t len, char **out, size_t *n_out);

/* Characters that are one when case is ignored: classes of them, with blanks between. */
const char *unicode_fold_classes(void);
/* Is one of these characters one with several when case is ignored, as U+00DF is with "ss"? */
bool unicode_folds_long(uint32_t first, uint32_t last);
/* Do two characters, as letters without case, begin what is one with a single character? */
bool unicode_fold_pair(uint32_t a, uint32_t b);

#endif
