from simulations.report.studies.stages import strengths


def test_pipelines_that_differ_in_one_number_are_in_order_of_it() -> None:
    for pipelines, found in (
        (["", "Blur(std=2.0)", "Blur(std=0.5)", "Clip(max_norm=1.0)"], [("Blur(std=0.5)", "Blur(std=2.0)")]),
        (["A(low=1, high=4)", "A(low=2, high=8)"], []),  # in two numbers: no order of strength
        ([f"A(low=1, high={at})" for at in (4, 16, 8)], [tuple(f"A(low=1, high={at})" for at in (4, 8, 16))]),
        (["Noise(std=1e-05)", "Noise(std=0.01)"], [("Noise(std=1e-05)", "Noise(std=0.01)")]),
        # A digit of a name is no strength, and a text given twice is one pipeline.
        (["A2()", "A3()"], []),
        (["A(x=1)", "A(x=1)"], []),
        ([], []),
    ):
        assert strengths(pipelines) == found
