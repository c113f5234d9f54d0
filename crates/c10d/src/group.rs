//! Process groups: a fixed set of processes that compute together.

use std::{
    cell::RefCell,
    ffi::CString,
    fmt,
    ptr::{self, NonNull},
    rc::Rc,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use tch::Tensor;

use crate::{
    error::{Error, Result},
    ffi::{self, Failure, RawGroup, RawWatch, RawWork, TensorPtr, c_string, call, made, millis},
    store::Store,
    work::Work,
};

/// Tensors are packed into messages of about this size.
const BROADCAST_BYTES: usize = 8 << 20;

/// What carries the data.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum Backend {
    /// TCP between CPUs.
    Gloo(Interface),
    /// NCCL between GPUs; this process uses the one with this number.
    #[cfg(feature = "cuda")]
    Nccl {
        /// The number of the CUDA device.
        device: usize,
    },
}

/// The address at which Gloo listens for peers.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub enum Interface {
    /// The one that this machine's host name stands for, or else the loopback address.
    #[default]
    Auto,
    /// The one of a host name or address, such as `127.0.0.1`.
    Host(String),
    /// The one of a network interface, such as `eth0`.
    Named(String),
}

/// How to form a group.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct GroupOptions {
    /// What carries the data.
    pub backend: Backend,
    /// How long a peer may take to come, and then to connect.
    pub connect_timeout: Duration,
    /// How long the machine of a peer may acknowledge nothing before the peer counts as lost: one without power, or behind a link that
    /// is cut. A peer that only computes for longer is not meant, since Gloo's own thread receives. Without meaning for NCCL.
    pub link_timeout: Duration,
    /// How long one collective may take. It is the limit for a peer that hangs; one that dies is noticed at once.
    pub timeout: Duration,
}

impl Default for GroupOptions {
    fn default() -> GroupOptions {
        GroupOptions {
            backend: Backend::Gloo(Interface::Auto),
            connect_timeout: Duration::from_secs(60),
            link_timeout: Duration::from_secs(10),
            timeout: Duration::from_secs(300),
        }
    }
}

/// What becomes of the elements that the ranks bring along.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ReduceOp {
    /// Their sum.
    Sum,
    /// Their mean; for floating-point numbers only.
    Avg,
    /// The smallest.
    Min,
    /// The largest.
    Max,
}

/// A fixed set of processes, numbered from 0, that call the same collectives in the same order.
///
/// A group does not change. When a peer is lost, everybody's collective fails with [`Error::PeerLost`]; drop the group and
/// [form](ProcessGroup::form) another one, under another prefix of the store. Whoever fails closes its connections, so the failure
/// reaches also those who do not talk to the lost peer directly.
///
/// A clone is the same group. A group stays in the thread that formed it (it is neither `Send` nor `Sync`), since c10d expects
/// collectives of one group in one order; [`AbortHandle`] is what other threads may have. Dropping the last clone ends what is
/// still under way and joins Gloo's threads. Where all ranks part in peace, [`leave`](ProcessGroup::leave) first.
///
/// ```
/// use std::time::Duration;
///
/// use c10d::{Backend, GroupOptions, Interface, ProcessGroup, ReduceOp, Store};
///
/// // A group of one; others would connect to `store.address()` and take the ranks from 1 on.
/// let store = Store::host("127.0.0.1:0")?;
/// let backend = Backend::Gloo(Interface::Host("127.0.0.1".to_owned()));
/// let options = GroupOptions { backend, timeout: Duration::from_secs(10), ..GroupOptions::default() };
/// let group = ProcessGroup::form(&store.prefix("generation-0")?, 0, 1, &options)?;
///
/// let mut gradient = tch::Tensor::from_slice(&[1.0, 2.0]);
/// group.all_reduce(&mut gradient, ReduceOp::Avg)?;
/// assert_eq!(gradient, tch::Tensor::from_slice(&[1.0, 2.0]));
/// # Ok::<(), c10d::Error>(())
/// ```
#[derive(Clone)]
pub struct ProcessGroup {
    inner: Rc<Inner>,
}

struct Inner {
    raw: NonNull<RawGroup>,
    store: Store,
    timeout: Duration,
    rank: usize,
    size: usize,
    aborted: Arc<AtomicBool>,
    /// The first failure, after which nothing is tried.
    failure: RefCell<Option<String>>,
}

impl Drop for Inner {
    fn drop(&mut self) {
        // SAFETY: this is the last clone, and it owns the pointer. Reducers keep a clone of the group.
        unsafe { ffi::c10d_group_free(self.raw.as_ptr()) }
    }
}

impl ProcessGroup {
    /// Joins the group of `size` processes that meet at `store`, as number `rank`. Returns when all have come.
    ///
    /// Each group needs a prefix of the store that no other group has used.
    pub fn form(store: &Store, rank: usize, size: usize, options: &GroupOptions) -> Result<ProcessGroup> {
        const DURING: &str = "forming a group";
        let number = |count: usize| {
            i32::try_from(count)
                .map_err(|_| Error::invalid(DURING, format!("{count} is too large for a rank")))
        };
        let (rank_number, size_number) = (number(rank)?, number(size)?);
        if rank >= size {
            return Err(Error::invalid(
                DURING,
                format!("rank {rank} of {size}: ranks go from 0 to size - 1"),
            ));
        }
        let timeout = millis(options.timeout);
        let mut raw = ptr::null_mut();
        match &options.backend {
            Backend::Gloo(interface) => {
                let text = |text: &str| c_string(DURING, text).map(Some);
                let (host, named) = match interface {
                    Interface::Auto => (None, None),
                    Interface::Host(host) => (text(host)?, None),
                    Interface::Named(name) => (None, text(name)?),
                };
                let pointer =
                    |text: &Option<CString>| text.as_ref().map_or(ptr::null(), |text| text.as_ptr());
                let (connect, link) = (millis(options.connect_timeout), millis(options.link_timeout));
                // SAFETY: the store and the strings are alive, and so is the place for the result.
                call(|message| unsafe {
                    ffi::c10d_group_gloo(
                        store.raw(),
                        rank_number,
                        size_number,
                        connect,
                        link.min(i64::from(i32::MAX)),
                        timeout,
                        pointer(&host),
                        pointer(&named),
                        &raw mut raw,
                        message,
                    )
                })
            }
            #[cfg(feature = "cuda")]
            Backend::Nccl { device } => {
                let device = number(*device)?;
                // SAFETY: the store is alive, and so is the place for the result.
                call(|message| unsafe {
                    let out = &raw mut raw;
                    ffi::c10d_group_nccl(store.raw(), rank_number, size_number, timeout, device, out, message)
                })
            }
        }
        .map_err(|failure| Error::of(DURING, failure))?;
        let raw = made(raw);
        let aborted = Arc::new(AtomicBool::new(false));
        let (store, timeout) = (store.clone(), options.timeout);
        let inner = Inner { raw, store, timeout, rank, size, aborted, failure: RefCell::new(None) };
        Ok(ProcessGroup { inner: Rc::new(inner) })
    }

    /// The number of this process in the group.
    #[must_use]
    pub fn rank(&self) -> usize {
        self.inner.rank
    }

    /// How many processes the group has.
    #[must_use]
    pub fn size(&self) -> usize {
        self.inner.size
    }

    /// Combines the tensors of all ranks, element by element, and leaves the result in each.
    pub fn all_reduce(&self, tensor: &mut Tensor, op: ReduceOp) -> Result<()> {
        self.all_reduce_async(tensor.shallow_clone(), op)?.wait(None).map(drop)
    }

    /// Begins an all-reduce. The tensor is Gloo's until [`Work::wait`] gives it back.
    pub fn all_reduce_async(&self, tensor: Tensor, op: ReduceOp) -> Result<Work> {
        const DURING: &str = "all-reduce";
        if op == ReduceOp::Avg && !tensor.is_floating_point() {
            let kind = tensor.kind();
            return Err(Error::invalid(DURING, format!("the mean of {kind:?} is none, use floating point")));
        }
        let (code, divisor) = match op {
            ReduceOp::Sum => (0, None),
            ReduceOp::Avg => (0, Some(self.size())),
            ReduceOp::Min => (1, None),
            ReduceOp::Max => (2, None),
        };
        let pointer = tensor.as_ptr().cast();
        // SAFETY: the group and the tensor are alive; the work keeps the tensor's memory.
        let raw = self.launch(DURING, |out, message| unsafe {
            ffi::c10d_group_all_reduce(self.raw(), pointer, code, out, message)
        })?;
        Ok(Work::new(self.clone(), DURING, raw, vec![tensor], divisor))
    }

    /// Copies the tensor of rank `root` to all others, which have one of the same shape.
    pub fn broadcast(&self, tensor: &mut Tensor, root: usize) -> Result<()> {
        const DURING: &str = "broadcast";
        let root = self.root(DURING, root)?;
        let tensor = tensor.shallow_clone();
        let pointer = tensor.as_ptr().cast();
        // SAFETY: the group and the tensor are alive; the work keeps the tensor's memory.
        let raw = self.launch(DURING, |out, message| unsafe {
            ffi::c10d_group_broadcast(self.raw(), pointer, root, out, message)
        })?;
        Work::new(self.clone(), DURING, raw, vec![tensor], None).wait(None).map(drop)
    }

    /// Copies many tensors, such as all parameters of a model, packed into few messages.
    pub fn broadcast_all(&self, tensors: &mut [Tensor], root: usize) -> Result<()> {
        const DURING: &str = "broadcast of many tensors";
        let root = self.root(DURING, root)?;
        let pointers = pointers(tensors);
        // SAFETY: the group and the tensors are alive during the call, which waits for the end.
        self.run(DURING, |message| unsafe {
            let (first, count) = (pointers.as_ptr(), pointers.len());
            ffi::c10d_group_broadcast_all(self.raw(), first, count, BROADCAST_BYTES, root, message)
        })
    }

    /// The tensors of all ranks, by rank; they have the same shape.
    pub fn all_gather(&self, tensor: &Tensor) -> Result<Vec<Tensor>> {
        const DURING: &str = "all-gather";
        let gathered: Vec<Tensor> = (0..self.size()).map(|_| tensor.detach().empty_like()).collect();
        let (input, outputs) = (tensor.as_ptr().cast(), pointers(&gathered));
        // SAFETY: the group and the tensors are alive; there is an output for each rank; the work keeps their memory.
        let raw = self.launch(DURING, |out, message| unsafe {
            ffi::c10d_group_all_gather(self.raw(), input, outputs.as_ptr(), out, message)
        })?;
        let mut all = gathered;
        all.push(tensor.shallow_clone());
        let mut all = Work::new(self.clone(), DURING, raw, all, None).wait_all(None)?;
        all.pop();
        Ok(all)
    }

    /// Returns when all ranks have called it.
    pub fn barrier(&self) -> Result<()> {
        const DURING: &str = "barrier";
        // SAFETY: the group is alive, and so is the place for the result.
        let raw =
            self.launch(DURING, |out, message| unsafe { ffi::c10d_group_barrier(self.raw(), out, message) })?;
        Work::new(self.clone(), DURING, raw, Vec::new(), None).wait_all(None).map(drop)
    }

    /// Waits until all ranks have come to this point, with all collectives behind them, and ends the group.
    ///
    /// A rank that just drops its group may do so while a slower one still reads the last result, which then is lost to it.
    /// This agreement goes through the store, so nobody closes a connection before all agree.
    pub fn leave(self) -> Result<()> {
        const DURING: &str = "leaving a group";
        self.check(DURING)?;
        let Inner { store, timeout, size, .. } = &*self.inner;
        if store.add("c10d/leaving", 1)? == i64::try_from(*size).unwrap_or(i64::MAX) {
            store.set("c10d/left", b"")?;
        }
        store.wait(&["c10d/left"], *timeout)
    }

    /// Ends the group at once: what is under way fails here with [`Error::Aborted`], and at the peers with [`Error::PeerLost`].
    pub fn abort(&self) {
        self.inner.aborted.store(true, Ordering::Relaxed);
        // SAFETY: the group is alive.
        unsafe { ffi::c10d_group_abort(self.raw()) }
    }

    /// Lets another thread abort the group while this one waits in a collective.
    #[must_use]
    pub fn abort_handle(&self) -> AbortHandle {
        // SAFETY: the group is alive.
        let raw = made(unsafe { ffi::c10d_group_watch(self.raw()) });
        AbortHandle { watch: Arc::new(Watch(raw)), aborted: self.inner.aborted.clone() }
    }

    pub(crate) fn raw(&self) -> *const RawGroup {
        self.inner.raw.as_ptr()
    }

    /// An error if the group is known to be of no use.
    pub(crate) fn check(&self, during: &'static str) -> Result<()> {
        if let Some(first) = &*self.inner.failure.borrow() {
            return Err(Error::Aborted { during, message: format!("the group failed before ({first})") });
        }
        if self.inner.aborted.load(Ordering::Relaxed) {
            return Err(Error::aborted(during));
        }
        Ok(())
    }

    /// Closes the group after an error that it cannot survive, so that the peers fail as well instead of waiting.
    pub(crate) fn fail(&self, error: Error) -> Error {
        if !error.leaves_the_group_intact() {
            self.inner.failure.borrow_mut().get_or_insert_with(|| error.to_string());
            // SAFETY: the group is alive.
            unsafe { ffi::c10d_group_abort(self.raw()) };
        }
        error
    }

    /// Begins a collective.
    fn launch(
        &self,
        during: &'static str,
        entry: impl FnOnce(*mut *mut RawWork, ffi::Message) -> i32,
    ) -> Result<NonNull<RawWork>> {
        self.check(during)?;
        let mut raw = ptr::null_mut();
        call(|message| entry(&raw mut raw, message))
            .map_err(|failure| self.fail(Error::at_launch(during, failure)))?;
        Ok(made(raw))
    }

    /// Calls an entry point that waits for the end of its collectives.
    pub(crate) fn run(&self, during: &'static str, entry: impl FnOnce(ffi::Message) -> i32) -> Result<()> {
        self.check(during)?;
        call(entry).map_err(|failure: Failure| self.fail(Error::of(during, failure)))
    }

    fn root(&self, during: &'static str, root: usize) -> Result<i32> {
        let wrong = || Error::invalid(during, format!("root {root}: the group has {} ranks", self.size()));
        i32::try_from(root).ok().filter(|_| root < self.size()).ok_or_else(wrong)
    }
}

impl fmt::Debug for ProcessGroup {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ProcessGroup").field("rank", &self.rank()).field("size", &self.size()).finish()
    }
}

pub(crate) fn pointers(tensors: &[Tensor]) -> Vec<TensorPtr> {
    tensors.iter().map(|tensor| tensor.as_ptr().cast()).collect()
}

/// Aborts a group from any thread. It does not keep the group alive.
#[derive(Clone)]
pub struct AbortHandle {
    watch: Arc<Watch>,
    aborted: Arc<AtomicBool>,
}

/// An owned `weak_ptr<Group>`.
struct Watch(NonNull<RawWatch>);

// SAFETY: reference counts are atomic, and aborting is made for other threads: it reads what never changes in a group, and
// takes the lock of each connection.
unsafe impl Send for Watch {}
// SAFETY: as above.
unsafe impl Sync for Watch {}

impl Drop for Watch {
    fn drop(&mut self) {
        // SAFETY: the handle owns the pointer, and this is the end of it.
        unsafe { ffi::c10d_watch_free(self.0.as_ptr()) }
    }
}

impl AbortHandle {
    /// As [`ProcessGroup::abort`]; without effect on a group that is gone.
    pub fn abort(&self) {
        self.aborted.store(true, Ordering::Relaxed);
        // SAFETY: the pointer is alive as long as the handle.
        unsafe { ffi::c10d_watch_abort(self.watch.0.as_ptr()) }
    }
}

impl fmt::Debug for AbortHandle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("AbortHandle").field("aborted", &self.aborted).finish_non_exhaustive()
    }
}
