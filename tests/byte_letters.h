/* byte_letters.h - bytes in the letters that stand for them in a tokenizer.json: printable ones for themselves, others
 * from U+0100 on, as part of a JSON string. */
#ifndef BYTE_LETTERS_H
#define BYTE_LETTERS_H

#include <stddef.h>
#include <stdint.h>

/* At most two bytes each; returns how many. */
static inline size_t put_byte_letters(char *to, const char *bytes, size_t n_bytes) {
    size_t n = 0;
    for (size_t i = 0; i < n_bytes; i++) {
        const uint32_t byte = (unsigned char)bytes[i];
        uint32_t letter = byte;
        if (byte <= 32) letter = 256 + byte;
        if (byte >= 127 && byte <= 160) letter = 256 + 33 + byte - 127;
        if (byte == 173) letter = 256 + 67;
        if (letter == '"' || letter == '\\') to[n++] = '\\';
        if (letter >= 128) to[n++] = (char)(0xc0 | letter >> 6);
        to[n++] = (char)(letter >= 128 ? 0x80 | (letter & 63) : letter);
    }
    return n;
}

#endif
