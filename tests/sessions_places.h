/* sessions_places.h - for tests of sessions that run in host memory, in files, and in files on a device that samples.
 */
#ifndef SESSIONS_PLACES_H
#define SESSIONS_PLACES_H

#include "sessions_setup.h"

static bool on_file;
static char *dir; /* of the test, where on_file */

static int setup(void **state, bool device, bool file) {
    (void)state;
    setup_on_device = device;
    on_file = file;
    return 0;
}
static int host_memory(void **state) { return setup(state, false, false); }
static int host_file(void **state) { return setup(state, false, true); }
static int device_file(void **state) { return setup(state, true, true); }
static int teardown(void **state) {
    (void)state;
    if (dir) remove_dir(dir);
    dir = NULL;
    return 0;
}

#define ALL(test) cmocka_unit_test_setup_teardown(test, host_memory, teardown), IN_FILES(test)
#define IN_FILES(test)                                                                                                 \
    {#test " in files", test, host_file, teardown, NULL}, {                                                            \
#test " in files, on a device that samples", test, device_file, teardown, NULL                                 \
    }

#endif
