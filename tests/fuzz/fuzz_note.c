/* fuzz_note.c - notes of conversations, which come back from a disk: what is read has tokens of the vocabulary, and is
 * written again as the same bytes. */
#include "server/completion/note.h"

#include <stdint.h>
#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

enum { VOCAB = 64 };

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    struct note note;
    struct buf again = {0};
    if (!note_read(data, size, VOCAB, &note)) return 0;
    if (note.kind == NOTE_ANSWER) {
        for (size_t i = 0; i < note.answer.n_ids; i++)
            if (note.answer.ids[i] < 0 || note.answer.ids[i] >= VOCAB) abort();
        note_put_answer(&again, note.place, &note.answer);
    } else {
        note_put_tools(&again, note.tools, note.n_tools);
    }
    if (again.len != size || memcmp(again.data, data, size) != 0) abort();
    note_fini(&note);
    buf_fini(&again);
    return 0;
}
