//! What is refused, and how.

use super::*;

fn layer() -> Experts {
    let router =
        Router { experts: 4, chosen: 2, scoring: Scoring::Softmax, normed: None, share_scale: 1.0 };
    Experts {
        columns: 64,
        size: 32,
        router,
        types: [WeightType::Q4_0, WeightType::Q8_0, WeightType::F16],
        gate: Gate::Silu,
        epsilon: 1e-5,
        residual_scale: 1.0,
    }
}

#[test]
fn layers_that_cannot_be_are_refused_by_name() {
    let router = layer().router;
    let chosen = |chosen| Experts { router: Router { chosen, ..router }, ..layer() };
    let experts = |experts| Experts { router: Router { experts, ..router }, ..layer() };
    let k = [WeightType::Q4_0, WeightType::Q4_0, WeightType::Q6_K];
    let sizes = "columns, size or the number of experts is out of range";
    for (layer, why) in [
        (Experts { columns: 0, ..layer() }, sizes),
        (Experts { size: 0, ..layer() }, sizes),
        (Experts { columns: 1 << 25, ..layer() }, sizes),
        (
            Experts {
                columns: 1 << 24,
                size: 1 << 24,
                types: [WeightType::F32; 3],
                ..experts(4096)
            },
            sizes,
        ),
        (experts(0), sizes),
        (experts(5000), sizes),
        (chosen(0), "0 of 4 experts cannot be chosen"),
        (chosen(5), "5 of 4 experts cannot be chosen"),
        (Experts { types: k, ..layer() }, "columns or size are no whole blocks of type Q6_K"),
    ] {
        assert_eq!(layer.check().unwrap_err().to_string(), why);
    }
    assert_eq!(layer().check(), Ok(()));
    assert_eq!(layer().stride(), 2 * 4096, "1,152 + 2,176 + 4,096 bytes are filled up");
}

#[test]
fn inputs_that_do_not_fit_are_refused_by_name() {
    let mut random = Random(4);
    let case = Case::of(layer(), 3, &mut random, &mut Panels::default());
    let whole = case.inputs();
    let more = vec![0.0; 1000];
    let of = |inputs: Inputs<'_>, num_rows: usize| {
        let step = Step::new(Processor::best(), &case.layer, inputs, num_rows);
        step.map(|_| ()).map_err(|wrong| wrong.to_string())
    };
    let some = |len: usize| Some(&more[..len]);
    for (inputs, why) in [
        (Inputs { rows: &more[..191], ..whole }, "rows has 191 numbers, not 192"),
        (Inputs { norm: some(63), ..whole }, "norm has 63 numbers, not 64"),
        (Inputs { scores: &more[..11], ..whole }, "scores has 11 numbers, not 12"),
        (Inputs { choice_bias: some(3), ..whole }, "choice_bias has 3 numbers, not 4"),
        (Inputs { up_bias: some(128), ..whole }, "up_bias has 128 numbers, not 256"),
        (Inputs { down_bias: some(64), ..whole }, "down_bias has 64 numbers, not 256"),
        (Inputs { residual: some(64), ..whole }, "residual has 64 numbers, not 192"),
        (Inputs { beside: some(64), ..whole }, "beside has 64 numbers, not 192"),
        (Inputs { beside_gate: some(4), ..whole }, "beside_gate has 4 numbers, not 3"),
        (
            Inputs { beside: None, beside_gate: some(3), ..whole },
            "there is a gate for what stands beside the experts, but nothing does",
        ),
        (
            Inputs { weights: &whole.weights[1..], ..whole },
            "the experts' weights have 32767 bytes, not 32768",
        ),
    ] {
        assert_eq!(of(inputs, 3).unwrap_err(), why);
    }
    assert_eq!(of(whole, 0).unwrap_err(), "rows are none, or too many");
    assert_eq!(of(whole, 1 << 33).unwrap_err(), "rows are none, or too many");
    assert_eq!(of(whole, 3), Ok(()));
}

#[test]
fn names_are_those_of_attributes() {
    assert_eq!(Scoring::named("softmax"), Some(Scoring::Softmax));
    assert_eq!(Scoring::named("sigmoid"), Some(Scoring::Sigmoid));
    assert_eq!(Scoring::named("tanh"), None);
    assert_eq!(Gate::named("clamped_swiglu"), Some(Gate::ClampedSwiglu));
    assert_eq!(Gate::named("relu"), None);
}
