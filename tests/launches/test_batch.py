from warpgauge.launches.batch import graph_id, launch_id, launch_ids, lines_signature


def test_the_id_is_the_sha256_of_kind_content_and_ordinal():
    assert launch_id("kineto", "ab", 3) == "7889b08a33657831d948d59dd729a1a9b9ed1a25ba1bd3fd1c3b5a51165d92ea"


def test_kind_content_and_ordinal_each_change_the_id():
    ids = {
        launch_id("kineto", "ab", 3),
        launch_id("nsight", "ab", 3),
        launch_id("kineto", "ac", 3),
        launch_id("kineto", "ab", 4),
        launch_id("kineto", "ab3", 0),
    }
    assert len(ids) == 5


def test_ids_of_many_records_are_the_ids_of_each():
    assert launch_ids("kineto", "ab", range(2)) == [
        launch_id("kineto", "ab", 0),
        launch_id("kineto", "ab", 1),
    ]


def test_trials_under_two_cuda_versions_are_of_two_graphs():
    signature = lines_signature(5, 1, 0)
    assert graph_id("T4", "12.5", signature) != graph_id("T4", "12.6", signature)
