/* model_path.h - where the demo model that comes with the program is, whatever the working directory. */
#ifndef MODEL_PATH_H
#define MODEL_PATH_H

#include <stddef.h>

/* The checkpoint directory of the demo model, found from the place of the program. 0, or -1 when it is not there: then
 * path says where it was looked for. */
int model_path_bundled(char *path, size_t size);
#define MODEL_PATH_MISSING "Demo model not found at %s; name a model with --model DIR."

#endif
