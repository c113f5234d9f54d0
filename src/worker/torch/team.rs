//! The workers that train a trial together, and what they agree on at every step.

use c10d::{ProcessGroup, ReduceOp, Reducer, ReducerOptions};
use tch::{Device, Kind, Tensor, no_grad};

use super::{Error, flat::FlatParameters};

/// What is agreed on travels as the gradient of a variable of its own, in the reduction that happens anyway. It is made this small
/// so that it leaves no trace in the norms of the gradients: its square is nothing next to any of them.
const SCALE: f64 = 1e-20;

/// What a worker sends to the others with a step.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub(super) struct StepVote {
    /// It is to leave the group.
    pub(super) leave: bool,
    /// It was given another batch.
    pub(super) retune: bool,
    /// It took more passes than were planned.
    pub(super) more_passes: bool,
    /// The loss of its part of the step before.
    pub(super) loss: f64,
    /// What it saw of the gradients of the step before.
    pub(super) norms: Norms,
}

/// Squared norms of the gradients of a step.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub(super) struct Norms {
    /// Of one worker, or the mean over all of them.
    pub(super) local_sq: f64,
    /// Of the mean of all workers' gradients.
    pub(super) reduced_sq: f64,
}

/// What all workers have agreed on with a step: the same for all of them.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct StepConsensus {
    /// All are to leave.
    pub(super) leave: bool,
    /// All were given another batch.
    pub(super) retune: bool,
    /// Somebody took more passes than were planned.
    pub(super) more_passes: bool,
    /// Mean of the losses of the step before.
    pub(super) loss: f64,
    /// Mean norms of the step before, if that was measured.
    pub(super) norms: Norms,
}

const VALUES: i64 = 6;

impl StepVote {
    fn encode(&self) -> [f32; VALUES as usize] {
        let flag = |raised: bool| f64::from(u8::from(raised));
        let Self { leave, retune, more_passes, loss, norms } = *self;
        [flag(leave), flag(retune), flag(more_passes), loss, norms.local_sq, norms.reduced_sq]
            .map(|value| (value * SCALE) as f32)
    }
}

impl StepConsensus {
    fn decode(mean: &[f32], size: u32) -> Result<Self, Error> {
        let &[leave, retune, more_passes, loss, local_sq, reduced_sq] = mean else {
            return Err(Error::Protocol(format!("{} agreed values instead of {VALUES}", mean.len())));
        };
        // Rounding may take a little of the mean of ones; one worker less would take far more.
        let all = |mean: f32| f64::from(mean) / SCALE > 1.0 - 0.5 / f64::from(size);
        let any = |mean: f32| f64::from(mean) / SCALE > 0.5 / f64::from(size);
        let value = |mean: f32| f64::from(mean) / SCALE;
        let norms = Norms { local_sq: value(local_sq), reduced_sq: value(reduced_sq) };
        let (leave, retune, more_passes) = (all(leave), all(retune), any(more_passes));
        Ok(Self { leave, retune, more_passes, loss: value(loss), norms })
    }

    /// Alone there is nobody to agree with.
    const fn alone(vote: &StepVote) -> Self {
        // Alone it takes the passes that it says.
        let StepVote { leave, retune, loss, norms, .. } = *vote;
        Self { leave, retune, more_passes: false, loss, norms }
    }
}

/// One worker's view of the group.
#[derive(Debug)]
pub(super) struct Team {
    pub(super) rank: u32,
    pub(super) size: u32,
    /// Machines.
    pub(super) nodes: u32,
    collectives: Option<Collectives>,
}

/// What it takes to reduce gradients; a worker alone has none.
#[derive(Debug)]
struct Collectives {
    // Goes before the group, which it uses.
    reducer: Reducer,
    group: ProcessGroup,
    votes: Tensor,
}

impl Team {
    /// Of a worker that trains alone.
    pub(super) const fn alone() -> Self {
        Self { rank: 0, size: 1, nodes: 1, collectives: None }
    }

    /// With `norms`, steps measure the norms of their gradients.
    pub(super) fn new(
        nodes: u32,
        group: ProcessGroup,
        flat: &FlatParameters,
        norms: bool,
    ) -> Result<Self, Error> {
        let votes =
            Tensor::f_zeros([VALUES], (Kind::Float, flat.weights.device()))?.f_set_requires_grad(true)?;
        let mut variables: Vec<Tensor> = flat.variables().iter().map(Tensor::shallow_clone).collect();
        variables.push(votes.shallow_clone());
        // Losses are parts of the whole batch's, so that sums are meant.
        let options = ReducerOptions { average: false, norms, ..ReducerOptions::default() };
        let reducer = Reducer::new(&group, &variables, &options)?;
        let (rank, size) = (group.rank() as u32, group.size() as u32);
        Ok(Self { rank, size, nodes, collectives: Some(Collectives { reducer, group, votes }) })
    }

    /// The group, if there are others.
    pub(super) fn group(&self) -> Option<&ProcessGroup> {
        self.collectives.as_ref().map(|collectives| &collectives.group)
    }

    /// Has the norms of gradients taken after this weighting.
    pub(super) fn weigh(&mut self, flat: &FlatParameters, weighting: &Tensor) -> Result<(), Error> {
        if let Some(collectives) = &mut self.collectives {
            collectives.reducer.weigh(&flat.windows(weighting)?)?;
        }
        Ok(())
    }

    /// A pass whose gradients stay here until the last pass of the step.
    pub(super) fn accumulate(&mut self, flat: &mut FlatParameters, loss: &Tensor) -> Result<(), Error> {
        match &mut self.collectives {
            Some(collectives) => Ok(collectives.reducer.accumulate(loss)?),
            None => flat.backward(loss),
        }
    }

    /// The last pass of a step: gradients become the sum over all workers. Gives what was agreed, and this worker's norms if it
    /// is not alone and the step is `measured`.
    pub(super) fn backward(
        &mut self,
        flat: &mut FlatParameters,
        loss: &Tensor,
        vote: &StepVote,
        measured: bool,
    ) -> Result<(StepConsensus, Option<Norms>), Error> {
        let Some(Collectives { reducer, votes, .. }) = &mut self.collectives else {
            flat.backward(loss)?;
            return Ok((StepConsensus::alone(vote), None));
        };
        let mut gradient = votes.f_grad()?;
        if gradient.defined() {
            no_grad(|| gradient.f_zero_().map(drop))?;
        }
        let size = f64::from(self.size);
        let mine = Tensor::f_from_slice(&vote.encode())?.f_div_scalar(size)?.f_to_device(votes.device())?;
        let whole = loss.f_add(&votes.f_mul(&mine)?.f_sum(Kind::Float)?)?;
        reducer.measure(measured)?;
        let norms = reducer.backward(&whole)?;
        let mean = Vec::<f32>::try_from(votes.f_grad()?.f_to_device(Device::Cpu)?)?;
        // A worker's own gradient is that of its part of the batch alone, which counts for one of `size`.
        let norms = Norms { local_sq: norms.local_sq() * size * size, reduced_sq: norms.reduced_sq() };
        Ok((StepConsensus::decode(&mean, self.size)?, Some(norms)))
    }

    /// The mean over all workers, in place.
    pub(super) fn average(&self, tensor: &mut Tensor) -> Result<(), Error> {
        if let Some(group) = self.group() {
            group.all_reduce(tensor, ReduceOp::Avg)?;
        }
        Ok(())
    }

    /// The sums over all workers.
    pub(super) fn sum(&self, values: &[f64], device: Device) -> Result<Vec<f64>, Error> {
        let Some(group) = self.group() else { return Ok(values.to_vec()) };
        let mut tensor = Tensor::f_from_slice(values)?.f_to_device(device)?;
        group.all_reduce(&mut tensor, ReduceOp::Sum)?;
        Ok(Vec::try_from(tensor.f_to_device(Device::Cpu)?)?)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn something_is_agreed_when_all_vote_for_it() {
        for size in [2_u32, 3, 8, 64] {
            let mean = |leaving: u32| {
                let vote =
                    |leave| StepVote { leave, more_passes: leave, loss: 2.0, ..StepVote::default() }.encode();
                let mut sum = [0.0_f32; VALUES as usize];
                for rank in 0..size {
                    let mine = vote(rank < leaving);
                    sum.iter_mut().zip(mine).for_each(|(sum, mine)| *sum += mine / size as f32);
                }
                StepConsensus::decode(&sum, size).expect("six values")
            };
            assert!(mean(size).leave && !mean(size - 1).leave && !mean(0).leave);
            assert!(!mean(size).retune);
            assert!(mean(1).more_passes && !mean(0).more_passes);
            assert!((mean(1).loss - 2.0).abs() < 1e-5);
        }
    }

    #[test]
    fn a_loss_that_is_no_number_does_not_disturb_the_flags() {
        let vote = StepVote { leave: true, loss: f64::NAN, ..StepVote::default() };
        let agreed = StepConsensus::decode(&vote.encode(), 1).expect("six values");
        assert!(agreed.leave && !agreed.retune && agreed.loss.is_nan());
    }
}
