/* test_object_probe.c - stores that lie are refused, with what they did. With URL and ENDPOINT it probes that store,
 * for tests/deploy: one line, and status 0 where the store may be used. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <cmocka.h>

#include "tests/object_setup.h"

#include "engine/object/object_probe.h"

static void a_store_that_keeps_its_word_passes_and_keeps_nothing(void **state) {
    struct object_setup *s = *state;
    struct rod_error err;
    if (object_probe(s->store, &err)) fail_msg("%s", err.message);
    assert_int_equal(object_setup_count(s, "/_objects", "etag"), 0);
}

static void refuse(struct object_setup *s, const char *fault, const char *did) {
    struct rod_error err = {0};
    object_setup_faults(s, fault);
    const int rc = object_probe(s->store, &err);
    if (rc != ROD_EUNSUPPORTED || !strstr(err.message, did))
        fail_msg("%s: %s, '%s', want '%s'", fault, rod_code_name(rc), err.message, did);
    object_setup_faults(s, "[]");
}

static void a_store_that_lies_is_refused_with_what_it_did(void **state) {
    struct object_setup *s = *state;
    refuse(s, "[{\"do\":\"blind\",\"times\":-1,\"method\":\"PUT\"}]", "If-None-Match: * overwrites");
    refuse(s, "[{\"do\":\"racy\",\"s\":0.1,\"times\":-1,\"method\":\"PUT\",\"key\":\"race\"}]", "more than one wins");
    refuse(s, "[{\"do\":\"racy\",\"s\":0.1,\"times\":-1,\"method\":\"PUT\",\"key\":\"race\",\"after\":4}]",
           "If-Match at once");
    refuse(s, "[{\"do\":\"no_304\",\"times\":-1}]", "the version that is known");
    refuse(s, "[{\"do\":\"stale\",\"times\":-1,\"method\":\"GET\"}]", "does not see the last write");
    refuse(s,
           "[{\"do\":\"text\",\"times\":-1,\"list\":true,\"text\":\"<ListBucketResult><IsTruncated>false</IsTruncated>"
           "</ListBucketResult>\"}]",
           "list does not show");
    assert_int_equal(object_setup_count(s, "/_objects", "etag") > 0, 1); /* that list hid what there was to remove */
}

static void a_store_without_fit_etags_is_refused(void **state) {
    struct object_setup *s = *state;
    static const char *const faults[] = {"[{\"do\":\"long_etag\",\"times\":-1}]",
                                         "[{\"do\":\"no_etag\",\"times\":-1}]"};
    for (size_t i = 0; i < 2; i++) {
        struct rod_error err = {0};
        object_setup_faults(s, faults[i]);
        const int rc = object_probe(s->store, &err);
        if (!rc || !strstr(err.message, "ETag")) fail_msg("%s: %s", faults[i], err.message);
    }
    object_setup_faults(s, "[]");
}

static void a_delete_without_conditions_is_asked_about_first(void **state) {
    struct object_setup *s = *state;
    struct rod_error err;
    object_setup_faults(s, "[{\"do\":\"no_delete_condition\",\"times\":-1,\"method\":\"DELETE\"}]");
    if (object_probe(s->store, &err)) fail_msg("%s", err.message);
    struct object_put first = object_setup_put(s->store, "d", "1", 1, OBJECT_ANY, NULL);
    struct object_put second = object_setup_put(s->store, "d", "2", 1, OBJECT_ANY, NULL);
    assert_int_equal(object_store_delete(s->store, "d", first.version.etag, &err), ROD_ECONFLICT);
    assert_int_equal(object_store_delete(s->store, "d", second.version.etag, &err), 0);
    object_setup_faults(s, "[]");
}

static void etags_may_be_wanted_without_quotes(void **state) {
    struct object_setup *s = *state;
    struct rod_error err;
    object_setup_faults(s, "[{\"do\":\"bare\",\"times\":-1,\"method\":\"PUT\"}]");
    if (object_probe(s->store, &err)) fail_msg("%s", err.message);
    object_setup_faults(s, "[]");
}

static void a_store_that_is_gone_is_no_lie(void **state) {
    struct object_setup *s = *state;
    struct rod_error err;
    object_setup_faults(s, "[{\"do\":\"status\",\"times\":-1,\"status\":403,\"code\":\"AccessDenied\"}]");
    assert_int_equal(object_probe(s->store, &err), ROD_EIO);
    if (!strstr(err.message, "403 AccessDenied")) fail_msg("%s", err.message);
    object_setup_faults(s, "[]");
}

static int probe_one(const char *url, const char *endpoint) {
    const struct object_store_config config = {.url = url, .endpoint = endpoint};
    struct object_store *store;
    struct rod_error err = {0};
    int rc = object_store_open(&config, &store, &err);
    if (!rc) {
        rc = object_probe(store, &err);
        object_store_close(store);
    }
    printf("%s %s\n", rod_code_name(rc), err.message);
    return rc != 0;
}

int main(int argc, char **argv) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_store_that_keeps_its_word_passes_and_keeps_nothing),
        cmocka_unit_test(a_store_that_lies_is_refused_with_what_it_did),
        cmocka_unit_test(a_store_without_fit_etags_is_refused),
        cmocka_unit_test(a_delete_without_conditions_is_asked_about_first),
        cmocka_unit_test(etags_may_be_wanted_without_quotes),
        cmocka_unit_test(a_store_that_is_gone_is_no_lie),
    };
    return argc == 3 ? probe_one(argv[1], argv[2])
                     : cmocka_run_group_tests(tests, object_setup_begin, object_setup_finish);
}
