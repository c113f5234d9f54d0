//! What a journal must hold, kept beside it: so that the loss of its newest facts is noticed.
//!
//! A journal whose end is missing looks like a journal that is a little younger. The seal says how many facts there were, and the
//! chain up to them. It is overwritten in place and never waited for. That is enough, because a seal can only be older than the
//! journal, never ahead of it: it names facts as *durable* only after they are known to be on disk, so whichever version of it survives a loss
//! of power, its facts have survived as well. The facts of the *last* commit are with the system, not yet on disk; as long as the
//! machine has not been started again since, they must be there, too, whatever happened to the process.

use std::{
    fs::{self, File, OpenOptions},
    io::{self, Read},
    os::unix::fs::FileExt,
    path::Path,
};

use super::{
    Error, Folder,
    digest::{Chain, text_sum},
    place::sync_folder,
};
use crate::ids::StudyId;

/// A place for every second version each, in different sectors: one of them is whole, whatever happens to the other.
const SLOT_BYTES: usize = 512;
const BOOT_ID: &str = "/proc/sys/kernel/random/boot_id";
/// So often is a seal read while somebody writes it.
const TRIES: u32 = 20;

/// So many facts, and the chain up to the last of them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Claim {
    pub(super) facts: u64,
    pub(super) chain: Chain,
}

/// What a seal says.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Seal {
    pub(super) study: StudyId,
    /// Grows with each version.
    number: u64,
    /// What was on disk.
    durable: Claim,
    /// What was written.
    last: Claim,
    /// Since which start of the machine; none if the system does not say.
    boot: Option<String>,
}

impl Seal {
    /// The seal of a study; none if there is none.
    pub(super) fn read(folder: &Folder) -> Result<Option<Self>, Error> {
        let path = folder.seal();
        for _ in 0..TRIES {
            match File::open(&path) {
                Ok(file) => {
                    let mut bytes = Vec::new();
                    let read = file.take(2 * SLOT_BYTES as u64).read_to_end(&mut bytes);
                    read.map_err(|source| Error::io("read", &path, source))?;
                    let newest =
                        bytes.chunks(SLOT_BYTES).filter_map(Self::parse).max_by_key(|seal| seal.number);
                    if newest.is_some() {
                        return Ok(newest);
                    }
                }
                Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
                Err(source) => return Err(Error::io("read", &path, source)),
            }
        }
        Err(Error::not_whole(&path, "it does not say what the journal must hold".to_owned()))
    }

    /// Whether all of these facts were known to be on disk.
    pub(super) fn is_durable(&self, facts: Claim) -> bool {
        self.durable == facts
    }

    /// The facts that must be there now, the last ones first.
    pub(super) fn claims(&self) -> impl Iterator<Item = Claim> {
        // Without a new start of the machine, what was written is there.
        let is_same = self.boot.is_some() && self.boot == boot_id();
        [is_same.then_some(self.last), Some(self.durable)].into_iter().flatten()
    }

    fn text(&self) -> String {
        let Self { study, number, durable, last, boot } = self;
        let boot = boot.as_deref().unwrap_or("-");
        let claim = |Claim { facts, chain }: &Claim| format!("{facts} {chain}");
        let text = format!("{study} {number} durable {} last {} {boot}", claim(durable), claim(last));
        format!("{text} {:016x}", text_sum(&text))
    }

    fn parse(slot: &[u8]) -> Option<Self> {
        let text = str::from_utf8(slot).ok()?.trim_end_matches(['\n', ' ']);
        let (said, sum) = text.rsplit_once(' ')?;
        if sum != format!("{:016x}", text_sum(said)) {
            return None;
        }
        let mut words = said.split(' ');
        let study = words.next()?.parse().ok()?;
        let number = words.next()?.parse().ok()?;
        let mut claim = |name: &str| {
            let is_it = words.next()? == name;
            let (facts, chain) = (words.next()?.parse().ok()?, words.next()?.parse().ok()?);
            is_it.then_some(Claim { facts, chain })
        };
        let (durable, last) = (claim("durable")?, claim("last")?);
        let boot = words.next().filter(|boot| *boot != "-").map(str::to_owned);
        Some(Self { study, number, durable, last, boot })
    }
}

/// Keeps the seal of a study up to date.
#[derive(Debug)]
pub(super) struct Sealer {
    folder: Folder,
    file: File,
    seal: Seal,
}

impl Sealer {
    /// Begins a seal whose facts are all on disk.
    pub(super) fn create(folder: &Folder, study: StudyId, durable: Claim) -> Result<Self, Error> {
        let (path, new) = (folder.seal(), folder.root().join("journal.seal.new"));
        let seal = Seal { study, number: 0, durable, last: durable, boot: boot_id() };
        let make = || -> io::Result<File> {
            let file = OpenOptions::new().read(true).write(true).create(true).truncate(true).open(&new)?;
            // Both places are written, so that later ones need no room on the disk.
            write(&file, &Seal { number: 1, ..seal.clone() })?;
            write(&file, &seal)?;
            file.sync_all()?;
            fs::rename(&new, &path)?;
            sync_folder(folder.root())?;
            Ok(file)
        };
        let file = make().map_err(|source| Error::io("write", &path, source))?;
        Ok(Self { folder: folder.clone(), file, seal: Seal { number: 1, ..seal } })
    }

    /// Facts were written.
    pub(super) fn written(&mut self, last: Claim) -> io::Result<()> {
        self.seal.last = last;
        self.put()
    }

    /// All facts that were written are on disk.
    pub(super) fn durable(&mut self) -> io::Result<()> {
        self.seal.durable = self.seal.last;
        self.put()
    }

    fn put(&mut self) -> io::Result<()> {
        self.seal.number += 1;
        write(&self.file, &self.seal)
    }

    /// Makes the seal again if it was removed.
    pub(super) fn keep(&mut self) -> Result<(), Error> {
        if super::place::is_at(&self.file, &self.folder.seal()) {
            return Ok(());
        }
        let Seal { study, last, .. } = self.seal;
        *self = Self::create(&self.folder, study, last)?;
        Ok(())
    }
}

fn write(file: &File, seal: &Seal) -> io::Result<()> {
    let text = format!("{:<width$}\n", seal.text(), width = SLOT_BYTES - 1);
    file.write_all_at(text.as_bytes(), (seal.number % 2) * SLOT_BYTES as u64)
}

/// Another one after each start of the machine.
fn boot_id() -> Option<String> {
    let id = fs::read_to_string(Path::new(BOOT_ID)).ok()?;
    Some(id.trim().to_owned()).filter(|id| !id.is_empty() && !id.contains(' '))
}

#[cfg(test)]
mod tests {
    use std::{env, path::PathBuf, process};

    use super::*;
    use crate::{
        store::{Journal, Store},
        trials::engine::{Fact, JournalEntry},
    };

    fn folder(name: &str) -> Folder {
        let root = env::temp_dir().join(format!("pollux-tune-seal-{name}-{}", process::id()));
        let _ = fs::remove_dir_all(&root);
        Folder::new(&root)
    }

    fn entry(number: u64) -> JournalEntry {
        let yaml = format!("space: {{x: {{float: [0, {}]}}}}\n", number + 1);
        JournalEntry { at_s: number as f64, fact: Fact::StudyChanged { yaml } }
    }

    /// A disk as it may be after a loss of power: the newest facts up to a length, and a seal of some time before.
    fn lose_power(from: &Folder, to: &Folder, wal_bytes: u64, seal: &[u8], is_new_boot: bool) {
        let _ = fs::remove_dir_all(to.root());
        fs::create_dir_all(to.root()).unwrap();
        fs::copy(from.journal(), to.journal()).unwrap();
        let wal = fs::read(from.wal()).unwrap();
        fs::write(to.wal(), &wal[..wal_bytes as usize]).unwrap();
        fs::write(to.seal(), seal).unwrap();
        if is_new_boot {
            let seal = Seal::read(to).unwrap().unwrap();
            let file = OpenOptions::new().write(true).open(to.seal()).unwrap();
            for number in [seal.number, seal.number + 1] {
                write(&file, &Seal { boot: Some("another".to_owned()), number, ..seal.clone() }).unwrap();
            }
        }
    }

    #[test]
    fn what_was_waited_for_survives_a_loss_of_power_with_every_seal_of_the_time() {
        let (running, lost) = (folder("power"), folder("no-power"));
        let mut store = Store::open(running.root()).unwrap();
        let (mut seals, mut synced) = (Vec::new(), (0, 0));
        for number in 0..12 {
            store.append(&[entry(number)]).unwrap();
            if [0, 3, 4, 8].contains(&number) {
                store.sync().unwrap();
                synced = (number + 1, fs::metadata(running.wal()).unwrap().len());
            }
            seals.push(fs::read(running.seal()).unwrap());
        }
        let (facts, bytes) = synced;
        let all = fs::metadata(running.wal()).unwrap().len();
        assert!(facts == 9 && bytes < all);
        for seal in &seals {
            for length in [bytes, bytes + 1, bytes + 5000, all] {
                lose_power(&running, &lost, length, seal, true);
                let store = Store::open(lost.root()).unwrap();
                let entries = store.entries(0).unwrap();
                assert!(entries.len() as u64 >= facts, "{} of {facts}", entries.len());
                assert_eq!(entries, (0..entries.len() as u64).map(entry).collect::<Vec<_>>());
                drop(store);
            }
        }
        // Without a new start of the machine even what was not waited for must be there.
        let last = seals.last().unwrap();
        lose_power(&running, &lost, bytes, last, false);
        let error = Store::open(lost.root()).map(drop).unwrap_err().to_string();
        assert!(error.contains("it has 9 of 12 facts"), "{error}");
        lose_power(&running, &lost, all, last, false);
        assert_eq!(Store::open(lost.root()).unwrap().len(), 12);
        // Less than what was waited for is a loss, whatever happened to the machine.
        lose_power(&running, &lost, bytes - 1, last, true);
        assert!(Store::open(lost.root()).is_err());
        for folder in [running, lost] {
            fs::remove_dir_all(folder.root()).unwrap();
        }
    }

    #[test]
    fn one_of_two_places_is_enough() {
        let folder = folder("places");
        drop(Store::open(folder.root()).unwrap());
        let (whole, bytes) = (Seal::read(&folder).unwrap().unwrap(), fs::read(folder.seal()).unwrap());
        for place in [0, SLOT_BYTES] {
            let mut bytes = bytes.clone();
            bytes[place + 3] ^= 1;
            fs::write(folder.seal(), bytes).unwrap();
            let read = Seal::read(&folder).unwrap().unwrap();
            assert_eq!(Seal { number: 0, ..read }, Seal { number: 0, ..whole.clone() });
        }
        let removed: PathBuf = folder.seal();
        let mut store = Store::open(folder.root()).unwrap();
        fs::remove_file(&removed).unwrap();
        store.append(&[entry(0)]).unwrap();
        store.sync().unwrap();
        assert!(removed.exists(), "it is made again");
        drop(store);
        assert_eq!(Store::open(folder.root()).unwrap().len(), 1);
        fs::remove_dir_all(folder.root()).unwrap();
    }
}
