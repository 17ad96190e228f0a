/* form.h - the form of an API: how its bodies become requests, and how answers and errors look in it.
 *
 * One const table an API, in the API's own folder; completion/ calls it and asks nobody which API it is. Functions of
 * an answer write frames into answer.frame. They report lack of memory there (frame.failed) and nothing else: what they
 * are given is valid. Threads: any, one at a time for an answer. Pure, but for ids that are drawn at random.
 */
#ifndef FORM_H
#define FORM_H

#include "answer.h"

struct answer_form {
    /**
     * Short name of the API, for people.
     */
    const char *name;
    /**
     * The API's number in digests of bodies. They are kept in files, so a number never changes and is never used again:
     * a new API has the next after the largest of all forms. Retired numbers: none yet.
     */
    unsigned number;
    /**
     * The field of a body that holds the prompt or the conversation: errors of the engine name it.
     */
    const char *input;
    /**
     * A header beside X-Request-Id in which clients of this API look for the request's id. [optional]
     */
    const char *id_header;
    /**
     * A header that clients of this API send, also to routes that several APIs have (GET /v1/models). [optional]
     */
    const char *client_header;
    /**
     * In what the form differs from others of its family, for functions that they share (api_choice.h). [optional]
     */
    const struct choice_style *style;
    /**
     * Bytes of answer.state, zeroed before the first call of a function below.
     */
    size_t state_bytes;
    /**
     * The end of a stream says the whole answer again: items are kept in a stream, too.
     */
    bool repeats;

    /**
     * Reads a body. 0, or -1 with err filled: a 400 that names the field as this API does, or a 404 for another model.
     * The body need not be UTF-8, which is an error too. What is in `out` is the caller's if 0 is returned.
     */
    int (*parse)(const char *body, size_t len, const struct api_defaults *defaults, struct api_request *out,
                 struct api_error *err);
    /**
     * The second half of reading a request: adds its headers, and names the session of its turn. 0, or -1 with err
     * filled.
     */
    int (*join)(struct api_request *request, const struct api_headers *headers, struct api_error *err);
    /**
     * Names the field at fault for an error of the engine about the request's session; code is one of rodimus.h.
     */
    void (*session_fault)(struct api_error *err, int code);
    /**
     * A token of the prompt with its scores, for requests that ask for them. NULL: the first one, which nothing stands
     * before. [optional]
     */
    void (*prompt)(struct answer_choice *choice, const struct rod_token *token);
    /**
     * A token of the answer, for requests that ask for scores or ids. Sets `due` if a frame has to show it. [optional]
     */
    void (*token)(struct answer_choice *choice, const struct rod_token *token, enum answer_token place);

    /**
     * Streams: this choice, which is not `opened`, is about to be read, or has its first tokens. Sets `opened` of each
     * choice whose opening it writes.
     */
    void (*open)(struct answer_choice *choice);
    /**
     * Streams: more text of the choice, whole characters. With the first frame of a choice that is `fresh` go its
     * scores and ids; the function clears `fresh` and `due`. len 0: only where something is `due`.
     */
    void (*text)(struct answer_choice *choice, const char *text, size_t len);
    /**
     * Streams: a call begins, with id and name. [optional: of an API without tools]
     */
    void (*call)(struct answer_choice *choice, const struct api_call *call);
    /**
     * Streams: the next bytes of the call's arguments; id and name are NULL. [optional: likewise]
     */
    void (*arguments)(struct answer_choice *choice, const struct api_call *call);
    /**
     * Streams: the choice has ended, with reason, stop_string and stop_id. last: it was the last one, and the answer's
     * own end follows.
     */
    void (*finish)(struct answer_choice *choice, bool last);
    /**
     * Streams: a sign of life in silence, perhaps before the opening, whose place it then takes. [optional: a comment]
     */
    void (*ping)(struct answer *answer);
    /**
     * The whole answer, of a request without a stream.
     */
    void (*whole)(struct answer *answer, struct buf *out);
    /**
     * Streams: an error behind the first byte, and the end.
     */
    void (*error)(struct answer *answer, const struct api_error *err, const char *request_id);
    /**
     * The body of an error of any route that is this API's.
     */
    void (*refuse)(struct buf *out, const struct api_error *err, const char *request_id);
    /**
     * Frees what the state owns, and what the form has put into choices; the state itself is not the form's to free.
     * [optional]
     */
    void (*close)(struct answer *answer);
    /**
     * One model in the list of them, which then has pages; NULL: OpenAI's list, which has none. [optional]
     */
    void (*model)(struct buf *out, const char *name, int64_t created_unix_s);
};

#endif
