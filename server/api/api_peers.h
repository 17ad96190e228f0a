/* api_peers.h - the fields of other servers, by name: what each asks for here.
 *
 * One table. The parser, the table in server/CLIENTS.md and the properties in openapi.yaml follow it, and tests compare
 * them. A field that would change the answer is done, or it is a 400 that names it; its neutral value passes, as
 * clients of other servers send all their fields. Pure; any thread.
 */
#ifndef API_PEERS_H
#define API_PEERS_H

#include "api_fields.h"

enum api_peer_kind {
    PEER_SAME,    /* the field has the same name here */
    PEER_ALIAS,   /* another name of the field `to` */
    PEER_GRAMMAR, /* another name of structured_outputs.`to` */
    PEER_REFUSED  /* a 400, unless it asks for nothing; `to` is the way out */
};
struct api_peer {
    const char *name, *servers; /* servers: whose name it is */
    enum api_peer_kind kind;
    const char *to;      /* NULL: there is no way out */
    const char *neutral; /* PEER_REFUSED: as JSON, a value that asks for nothing beside null, false, 0, "", [] and {} */
};
extern const struct api_peer api_peers[];
extern const size_t api_n_peers;

/* Gives root, which is p->root, our names beside the others' and refuses what is refused. False with an error. */
bool api_peers_apply(const struct api_fields *p, json_t *root);
/* The name that the client used for our field `param`: of api_peers (static), or param itself. */
const char *api_peers_sent(const struct api_fields *p, const char *param);
/* Lets an error of one of our fields name the client's field. */
void api_peers_rename(const struct api_fields *p);

#endif
