//! Loads examples on a thread of its own, ahead of the training.

use std::{
    collections::VecDeque,
    ops::Range,
    sync::mpsc::{self, Receiver, Sender},
    thread,
};

use tch::{Device, Tensor};

use super::{BoxError, Dataset, ElasticSampler, Error, Example};

/// What is asked of the thread: the examples at these positions.
type Request = Range<u64>;
type Answer = Result<Vec<Tensor>, BoxError>;

/// A data set on a thread of its own, which loads what will be needed next.
///
/// Requests are answered in order. If others than those that were prefetched turn out to be needed, because the batch or the
/// number of workers has changed, what was prefetched is dropped.
#[derive(Debug)]
pub(super) struct Loader {
    requests: Sender<Request>,
    answers: Receiver<Answer>,
    /// Asked for and not yet received.
    under_way: VecDeque<Request>,
    len: u32,
    device: Device,
}

/// How many batches are loaded ahead.
const AHEAD: usize = 2;

impl Loader {
    /// With an order, positions are those of a training and examples are augmented; without one they are the examples' numbers.
    pub(super) fn start(
        mut data: Box<dyn Dataset>,
        order: Option<ElasticSampler>,
        device: Device,
    ) -> Result<Self, Error> {
        let len = data.len();
        let (requests, asked) = mpsc::channel::<Request>();
        let (answer, answers) = mpsc::channel();
        let mut order = order;
        let load = move || {
            // It ends when the loader is dropped.
            while let Ok(positions) = asked.recv() {
                let examples = examples(order.as_mut(), positions);
                if answer.send(data.load(&examples)).is_err() {
                    break;
                }
            }
        };
        thread::Builder::new()
            .name("loader".to_owned())
            .spawn(load)
            .map_err(Error::io("starting a thread"))?;
        Ok(Self { requests, answers, under_way: VecDeque::new(), len, device })
    }

    /// How many examples there are.
    pub(super) const fn len(&self) -> u32 {
        self.len
    }

    /// The examples at these positions, stacked. `then` is what will likely be needed next.
    pub(super) fn next(
        &mut self,
        wanted: Range<u64>,
        then: impl Iterator<Item = Range<u64>>,
    ) -> Result<Vec<Tensor>, Error> {
        while self.under_way.front().is_some_and(|request| *request != wanted) {
            // A failure to load what is not used is no failure.
            let _unwanted = self.receive()?;
        }
        let after = then.take(AHEAD);
        for request in std::iter::once(wanted).chain(after).skip(self.under_way.len()) {
            self.requests.send(request.clone()).map_err(|_| stopped())?;
            self.under_way.push_back(request);
        }
        let batch = self.receive()?.map_err(|source| Error::User { what: "loading examples", source })?;
        let moved = batch.iter().map(|tensor| tensor.f_to_device(self.device));
        Ok(moved.collect::<Result<_, _>>()?)
    }

    fn receive(&mut self) -> Result<Answer, Error> {
        let answer = self.answers.recv().map_err(|_| stopped())?;
        self.under_way.pop_front();
        Ok(answer)
    }
}

fn stopped() -> Error {
    Error::User { what: "loading examples", source: "the thread of the data set has panicked".into() }
}

fn examples(order: Option<&mut ElasticSampler>, positions: Range<u64>) -> Vec<Example> {
    match order {
        Some(order) => positions
            .map(|position| Example {
                index: order.example(position),
                augment: Some(order.augmentation(position)),
            })
            .collect(),
        None => positions.map(|index| Example { index: index as u32, augment: None }).collect(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wire::with_causes;

    struct Numbers;

    impl Dataset for Numbers {
        fn len(&self) -> u32 {
            100
        }

        fn load(&mut self, examples: &[Example]) -> Result<Vec<Tensor>, BoxError> {
            if examples.iter().any(|example| example.index == 66) {
                return Err("66 cannot be read".into());
            }
            let numbers: Vec<i64> = examples.iter().map(|example| i64::from(example.index)).collect();
            Ok(vec![Tensor::from_slice(&numbers)])
        }
    }

    /// Loads from a number to the next; then come those up to the third, the fourth and so on.
    fn load(loader: &mut Loader, bounds: &[u64]) -> Vec<i64> {
        let mut ranges = bounds.windows(2).map(|pair| pair[0]..pair[1]);
        let wanted = ranges.next().expect("two numbers");
        let batch = loader.next(wanted, ranges).expect("it can be read");
        Vec::try_from(&batch[0]).expect("numbers")
    }

    #[test]
    fn what_was_loaded_ahead_is_used_if_it_is_wanted_and_dropped_if_not() {
        let mut loader = Loader::start(Box::new(Numbers), None, Device::Cpu).expect("a thread");
        assert_eq!(load(&mut loader, &[0, 2, 4, 6, 8]), [0, 1]);
        assert_eq!(loader.under_way, [2..4, 4..6]);
        assert_eq!(load(&mut loader, &[2, 4, 6, 8]), [2, 3]);
        assert_eq!(loader.under_way, [4..6, 6..8]);
        assert_eq!(load(&mut loader, &[4, 5, 6, 7]), [4]);
        assert_eq!(loader.under_way, [5..6, 6..7]);
        assert_eq!(load(&mut loader, &[5, 6]), [5]);
    }

    #[test]
    fn a_failure_counts_only_if_it_is_wanted() {
        let mut loader = Loader::start(Box::new(Numbers), None, Device::Cpu).expect("a thread");
        assert_eq!(load(&mut loader, &[65, 66, 67]), [65]);
        assert_eq!(load(&mut loader, &[1, 2]), [1]);
        let error = loader.next(66..67, std::iter::empty()).expect_err("it cannot be read");
        assert_eq!(with_causes(&error), "loading examples failed: 66 cannot be read");
        assert_eq!(load(&mut loader, &[3, 4]), [3]);
    }

    #[test]
    fn a_training_gets_its_examples_in_order() {
        let order = ElasticSampler::new(5, 50).expect("there are examples");
        let mut expected = order.clone();
        let mut loader = Loader::start(Box::new(Numbers), Some(order), Device::Cpu).expect("a thread");
        let batch = loader.next(0..3, std::iter::empty()).expect("it can be read");
        let wanted: Vec<i64> = expected.examples(0..3).into_iter().map(i64::from).collect();
        assert_eq!(Vec::<i64>::try_from(&batch[0]).expect("numbers"), wanted);
    }
}
