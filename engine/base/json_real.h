/* json_real.h - how a JSON number that is no integer is spelled: in its request, for the model and in grammars alike.
 */
#ifndef JSON_REAL_H
#define JSON_REAL_H

enum { JSON_REAL_BYTES = 32 };

/* The fewest digits that read back as the same double, in Python's spelling: 0.1, 100000.0, 1e-07, 1e+16. The value is
 * finite. Pure. */
void json_real_text(double value, char out[JSON_REAL_BYTES]);

#endif
