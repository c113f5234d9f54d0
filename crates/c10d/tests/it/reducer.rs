//! Gradients over several processes are those of one process with all the data.

use c10d::{Error, GradNorms, ProcessGroup, Reducer, ReducerOptions};
use tch::{Device, Kind, Tensor};

use crate::common::{Member, ranks, staged};

/// Small enough for several buckets.
const BUCKETS: ReducerOptions = ReducerOptions {
    first_bucket_bytes: 64,
    bucket_bytes: 600,
    find_unused: false,
    average: true,
    norms: true,
};

/// A network of four layers, and how much it errs.
struct Model {
    parameters: Vec<Tensor>,
}

impl Model {
    fn new(seed: i64) -> Model {
        tch::manual_seed(seed);
        let layer = |inputs: i64, outputs: i64| {
            [[outputs, inputs].as_slice(), &[outputs]]
                .map(|shape| Tensor::randn(shape, (Kind::Double, Device::Cpu)).set_requires_grad(true))
        };
        Model {
            parameters: [layer(5, 8), layer(8, 8), layer(8, 6), layer(6, 1)].into_iter().flatten().collect(),
        }
    }

    fn loss(&self, inputs: &Tensor, targets: &Tensor) -> Tensor {
        let mut x = inputs.shallow_clone();
        for layer in self.parameters.chunks(2) {
            x = x.matmul(&layer[0].transpose(0, 1)) + &layer[1];
            x = x.tanh();
        }
        (x - targets).square().mean(Kind::Double)
    }

    fn clear(&mut self) {
        for parameter in &mut self.parameters {
            parameter.zero_grad();
        }
    }

    fn gradients(&self) -> Vec<Tensor> {
        self.parameters.iter().map(|parameter| parameter.grad().copy()).collect()
    }

    /// A step of gradient descent.
    fn step(&mut self) {
        tch::no_grad(|| {
            for parameter in &mut self.parameters {
                let update = parameter.grad() * 0.1;
                let _ = parameter.f_sub_(&update).expect("the same shape");
            }
        });
    }
}

/// The same examples in all processes.
fn data(step: i64, examples: i64) -> (Tensor, Tensor) {
    tch::manual_seed(1000 + step);
    let options = (Kind::Double, Device::Cpu);
    (Tensor::randn([examples, 5], options), Tensor::randn([examples, 1], options))
}

fn part((inputs, targets): &(Tensor, Tensor), at: i64, of: i64) -> (Tensor, Tensor) {
    let length = inputs.size()[0] / of;
    (inputs.narrow(0, at * length, length), targets.narrow(0, at * length, length))
}

fn assert_equal(ours: &[Tensor], theirs: &[Tensor], what: &str) {
    for (at, (ours, theirs)) in ours.iter().zip(theirs).enumerate() {
        assert!(ours.allclose(theirs, 1e-10, 1e-12, false), "{what}, parameter {at}: {ours} {theirs}");
    }
}

fn assert_near(ours: f64, theirs: f64) {
    assert!((ours - theirs).abs() <= 1e-9 * theirs.abs(), "{ours} is not {theirs}");
}

fn square_sum(gradients: &[Tensor]) -> f64 {
    gradients.iter().map(|gradient| gradient.square().sum(Kind::Double).double_value(&[])).sum()
}

/// Trains for some steps, each with `micro` micro-batches, next to a model that sees all data in one process.
fn train(me: &Member, group: ProcessGroup, micro: i64) {
    let mut model = Model::new(me.rank as i64);
    let mut alone = Model::new(0);
    let mut lonely = Model::new(0);
    group.broadcast_all(&mut model.parameters, 0).expect("all are there");
    assert_equal(&model.parameters, &alone.parameters, "parameters at the start");
    let mut reducer = Reducer::new(&group, &model.parameters, &BUCKETS).expect("fine parameters");
    let (rank, size) = (me.rank as i64, me.size as i64);
    for step in 0..5 {
        let all = data(step, 12 * size * micro);
        let mine = part(&all, rank, size);
        let mut norms = GradNorms { buckets: Vec::new() };
        model.clear();
        for at in 0..micro {
            let (inputs, targets) = part(&mine, at, micro);
            let loss = model.loss(&inputs, &targets) / micro as f64;
            if at + 1 < micro {
                reducer.accumulate(&loss).expect("nothing is sent");
            } else {
                norms = reducer.backward(&loss).expect("all are there");
            }
        }
        alone.clear();
        alone.loss(&all.0, &all.1).backward();
        assert_equal(&model.gradients(), &alone.gradients(), &format!("gradients of step {step}"));

        // What this rank would have computed without the others.
        tch::no_grad(|| {
            lonely.parameters.iter_mut().zip(&alone.parameters).for_each(|(to, from)| to.copy_(from));
        });
        lonely.clear();
        lonely.loss(&mine.0, &mine.1).backward();
        assert!(norms.buckets.len() > 2, "{norms:?}");
        let elements: usize = model.parameters.iter().map(Tensor::numel).sum();
        assert_eq!(norms.buckets.iter().map(|bucket| bucket.elements).sum::<usize>(), elements);
        assert_near(norms.local_sq(), square_sum(&lonely.gradients()));
        assert_near(norms.reduced_sq(), square_sum(&alone.gradients()));

        model.step();
        alone.step();
    }
    assert_equal(&model.parameters, &alone.parameters, "parameters at the end");
    group.leave().expect("all are there");
}

#[test]
fn one_rank_trains_as_without_a_group() {
    ranks("reducer::one_rank_trains_as_without_a_group", 1, |me| train(me, me.group("gen0"), 1));
}

#[test]
fn two_ranks_train_as_one_process() {
    ranks("reducer::two_ranks_train_as_one_process", 2, |me| train(me, me.group("gen0"), 1));
}

#[test]
fn four_ranks_train_as_one_process() {
    ranks("reducer::four_ranks_train_as_one_process", 4, |me| train(me, me.group("gen0"), 1));
}

#[test]
fn accumulated_gradients_are_reduced_once() {
    ranks("reducer::accumulated_gradients_are_reduced_once", 2, |me| train(me, me.group("gen0"), 3));
}

/// The norm of each bucket is that of the parameters in it; before the first pass they go from the last to the first.
#[test]
fn buckets_hold_the_last_parameters_first() {
    ranks("reducer::buckets_hold_the_last_parameters_first", 2, |me| {
        let group = me.group("gen0");
        let parameter = |value: f64| Tensor::from_slice(&[value; 100]).set_requires_grad(true);
        let (first, last) = (parameter(1.0), parameter(2.0));
        let parameters = [first.shallow_clone(), last.shallow_clone()];
        let mut reducer = Reducer::new(&group, &parameters, &BUCKETS).expect("fine parameters");
        let factor = me.rank as f64 + 1.0;
        let norms = reducer
            .backward(&(&first * factor + &last * 10.0 * factor).sum(Kind::Double))
            .expect("all are there");
        let [last, first] = norms.buckets[..] else { panic!("{norms:?}") };
        for (bucket, gradient) in [(first, 1.0), (last, 10.0)] {
            assert_eq!(bucket.elements, 100);
            assert_near(bucket.local_sq, 100.0 * (gradient * factor).powi(2));
            assert_near(bucket.reduced_sq, 100.0 * (gradient * 1.5).powi(2));
        }
        group.leave().expect("all are there");
    });
}

/// Sums instead of means, and norms of some passes only.
#[test]
fn sums_and_norms_are_optional() {
    ranks("reducer::sums_and_norms_are_optional", 2, |me| {
        let group = me.group("gen0");
        let parameter = Tensor::from_slice(&[1.0; 100]).set_requires_grad(true);
        let parameters = [parameter.shallow_clone()];
        let factor = me.rank as f64 + 1.0;
        for (average, reduced) in [(true, 1.5), (false, 3.0)] {
            let options = ReducerOptions { average, ..BUCKETS };
            let mut reducer = Reducer::new(&group, &parameters, &options).expect("fine parameters");
            for norms in [true, false, true] {
                drop(parameter.grad().defined().then(|| parameter.grad().zero_()));
                reducer.measure(norms).expect("it was made with norms");
                let found =
                    reducer.backward(&(&parameter * factor).sum(Kind::Double)).expect("all are there");
                assert_eq!(parameter.grad(), Tensor::from_slice(&[reduced; 100]));
                let expected =
                    if norms { (100.0 * factor * factor, 100.0 * reduced * reduced) } else { (0.0, 0.0) };
                assert_near(found.local_sq(), expected.0);
                assert_near(found.reduced_sq(), expected.1);
            }
        }
        for average in [true, false] {
            let options = ReducerOptions { average, norms: false, ..BUCKETS };
            let mut reducer = Reducer::new(&group, &parameters, &options).expect("fine parameters");
            assert!(matches!(reducer.measure(true), Err(Error::Invalid { .. })));
            reducer.measure(false).expect("it does not");
            drop(parameter.grad().zero_());
            let found = reducer.backward(&(&parameter * factor).sum(Kind::Double)).expect("all are there");
            assert_eq!(parameter.grad(), Tensor::from_slice(&[if average { 1.5 } else { 3.0 }; 100]));
            assert!(found.buckets.is_empty());
        }
        group.leave().expect("all are there");
    });
}

/// Weights change the norms and nothing else, also when they are changed in place; what has none does not count.
#[test]
fn norms_are_of_weighted_gradients() {
    ranks("reducer::norms_are_of_weighted_gradients", 2, |me| {
        let group = me.group("gen0");
        let parameter = || Tensor::from_slice(&[1.0; 100]).set_requires_grad(true);
        let parameters = [parameter(), parameter()];
        let mut reducer = Reducer::new(&group, &parameters, &BUCKETS).expect("fine parameters");
        let factor = me.rank as f64 + 1.0;
        let mut weights = [Tensor::from_slice(&[3.0; 100])];
        reducer.weigh(&weights).expect("as long as the first parameter");
        for weight in [3.0, 0.5] {
            let _ = weights[0].fill_(weight);
            let loss = (&parameters[0] * factor + &parameters[1]).sum(Kind::Double);
            let norms = reducer.backward(&loss).expect("all are there");
            assert_near(norms.local_sq(), 100.0 * (weight * factor).powi(2));
            assert_near(norms.reduced_sq(), 100.0 * (weight * 1.5).powi(2));
            assert_near(parameters[0].grad().double_value(&[7]), 1.5);
            for parameter in &parameters {
                drop(parameter.grad().zero_());
            }
        }
        let error = reducer.weigh(&[Tensor::from_slice(&[1.0; 99])]).expect_err("too short");
        assert!(matches!(error, Error::Invalid { .. }), "{error}");
        reducer.weigh(&[]).expect("none is fine");
        let loss = (&parameters[0] * factor + &parameters[1]).sum(Kind::Double);
        assert_near(
            reducer.backward(&loss).expect("all are there").local_sq(),
            100.0 * (factor.powi(2) + 1.0),
        );
        group.leave().expect("all are there");
    });
}

#[test]
fn parameters_without_a_gradient_need_an_option() {
    ranks("reducer::parameters_without_a_gradient_need_an_option", 2, |me| {
        let parameter = |value: f32| Tensor::from_slice(&[value; 100]).set_requires_grad(true);
        let (used, unused) = (parameter(1.0), parameter(2.0));
        let parameters = [used.shallow_clone(), unused];
        let loss = || used.sum(Kind::Float) * (me.rank as f64 + 1.0);

        let group = me.group("with");
        let options = ReducerOptions { find_unused: true, ..BUCKETS };
        let mut reducer = Reducer::new(&group, &parameters, &options).expect("fine parameters");
        reducer.backward(&loss()).expect("it is found");
        assert_eq!(parameters[0].grad(), Tensor::from_slice(&[1.5_f32; 100]));
        drop(reducer);
        group.leave().expect("all are there");

        let group = me.group("without");
        let mut reducer = Reducer::new(&group, &parameters, &BUCKETS).expect("fine parameters");
        let passes = [reducer.backward(&loss()), reducer.backward(&loss())];
        let error = passes.into_iter().find_map(Result::err).expect("libtorch notices it in the second pass");
        assert!(matches!(error, Error::Other { .. } | Error::PeerLost { .. }), "{error}");
        assert!(matches!(reducer.backward(&loss()), Err(Error::Aborted { .. })));
    });
}

#[test]
fn different_models_are_an_error() {
    ranks("reducer::different_models_are_an_error", 2, |me| {
        let group = me.group("gen0");
        let parameter =
            Tensor::zeros([10 + me.rank as i64], (Kind::Float, Device::Cpu)).set_requires_grad(true);
        let made = Reducer::new(&group, &[parameter.shallow_clone()], &ReducerOptions::default());
        // Rank 0 is what the others are compared with; it learns of it when they leave.
        let result = made.and_then(|mut reducer| reducer.backward(&parameter.sum(Kind::Float)));
        let error = result.expect_err("the shapes differ");
        let expected = if me.rank == 0 { "a peer was lost" } else { "to match sizes" };
        assert!(error.to_string().contains(expected), "{error}");
    });
}

#[test]
fn bad_arguments_are_errors_and_the_reducer_goes_on() {
    ranks("reducer::bad_arguments_are_errors_and_the_reducer_goes_on", 2, |me| {
        let group = me.group("gen0");
        let parameter = Tensor::from_slice(&[1.0, 2.0]).set_requires_grad(true);
        let parameters = [parameter.shallow_clone()];
        let none = ReducerOptions { bucket_bytes: 0, ..BUCKETS };
        let mut reducer = Reducer::new(&group, &parameters, &BUCKETS).expect("fine parameters");
        for result in [
            Reducer::new(&group, &[], &BUCKETS).map(drop),
            Reducer::new(&group, &[parameter.detach()], &BUCKETS).map(drop),
            Reducer::new(&group, &parameters, &none).map(drop),
            reducer.backward(&(&parameter * 2.0)).map(drop),
            reducer.accumulate(&parameter.detach().sum(Kind::Double)),
        ] {
            assert!(matches!(result, Err(Error::Invalid { .. })), "{result:?}");
        }
        reducer.backward(&parameter.sum(Kind::Double)).expect("the reducer goes on");
        assert_eq!(parameter.grad(), Tensor::from_slice(&[1.0, 1.0]));
        group.leave().expect("all are there");
    });
}

#[test]
fn training_goes_on_after_a_death_in_the_backward_pass() {
    let body = |me: &Member| {
        let group = me.group("gen0");
        let model = Model::new(0);
        let mut reducer = Reducer::new(&group, &model.parameters, &BUCKETS).expect("fine parameters");
        let step = |step| {
            let (inputs, targets) = data(step, 6);
            if step == 5 {
                me.say("busy");
            }
            reducer.backward(&model.loss(&inputs, &targets)).err()
        };
        let error = (0..).find_map(step).expect("a peer dies");
        assert!(matches!(error, Error::PeerLost { .. }), "{error}");
        drop((reducer, group));
        let me = Member { size: 2, store: me.store.clone(), ..*me };
        train(&me, me.group("gen1"), 1);
    };
    staged("reducer::training_goes_on_after_a_death_in_the_backward_pass", 3, body, |mut world| {
        world.hear("busy");
        world.kill(2);
        world.join(&[2]);
    });
}
