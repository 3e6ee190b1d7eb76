//! The command and its process group: starting it, signalling it, and knowing when all of it is gone.
//!
//! The leader is first looked at without being reaped: as long as it is a zombie, nobody else can get its id, and a
//! signal to the group reaches the group. What the leader leaves behind becomes a child of fencepost, so the id stays
//! taken until fencepost itself has reaped the last of them.

use std::io;
use std::os::unix::process::CommandExt;
use std::process::Command;

use rustix::io::Errno;
use rustix::process::{
    Pid, Signal, WaitId, WaitIdOptions, WaitIdStatus, WaitOptions, kill_process, kill_process_group,
    test_kill_process_group, waitid, waitpgid, waitpid,
};

use crate::exit::Ended;
use crate::unchecked::{Start, before_exec};
use crate::warden::Target;

/// A command and who belongs to it.
#[derive(Debug)]
pub(crate) struct Group {
    id: Pid,
    target: Target,
    ended: Option<Ended>,
}

/// Where a command lives.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Place {
    /// In a process group of its own: all of that is the command.
    OwnGroup,
    /// In our group, to share our terminal: only its first process is the command.
    OurGroup,
}

/// What was found when looking at a group.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Seen {
    /// The leader runs.
    Running,
    /// The leader has exited and is not reaped: signals to the group are safe.
    LeaderExited,
    /// The leader is gone, others of its group are not.
    Stragglers,
    /// Nobody is left.
    Gone,
}

impl Group {
    /// Starts a command, which names itself to the warden before it begins, and does not begin after its lease. To be
    /// called on the main thread.
    ///
    /// # Errors
    /// What the operating system says about the command.
    pub(crate) fn spawn(command: &mut Command, place: Place, start: Start) -> io::Result<Self> {
        adopt_orphans()?;
        let target = match place {
            Place::OwnGroup => Target::Group,
            Place::OurGroup => Target::Process,
        };
        if place == Place::OwnGroup {
            command.process_group(0);
        }
        before_exec(command, target, start);
        let child = command.spawn()?;
        let id = i32::try_from(child.id()).ok().and_then(Pid::from_raw);
        let id = id.ok_or_else(|| io::Error::other("the process id is out of range"))?;
        Ok(Self { id, target: target(id), ended: None })
    }

    /// The leader's id, which is the group's.
    pub(crate) fn id(&self) -> Pid {
        self.id
    }

    /// Who is to be killed if the lock is lost.
    pub(crate) fn target(&self) -> Target {
        self.target
    }

    /// How the leader ended, once it has been reaped.
    pub(crate) fn ended(&self) -> Option<Ended> {
        self.ended
    }

    /// Looks at the group, and reaps what is neither its leader nor the warden.
    ///
    /// # Errors
    /// If the leader is not ours to wait for.
    pub(crate) fn look(&mut self, warden: Option<Pid>) -> io::Result<Seen> {
        if self.ended.is_none() {
            let exited = self.wait_for_leader(WaitIdOptions::NOWAIT)?.is_some();
            if !exited {
                reap_strays(&[Some(self.id), warden]);
            }
            return Ok(if exited { Seen::LeaderExited } else { Seen::Running });
        }
        if self.is_one_process() {
            return Ok(Seen::Gone);
        }
        self.reap();
        // Whoever forks and exits hides from one look: the child was not there when the list of processes was made. But
        // then a process of ours has ended meanwhile, or the second look finds the child.
        let gone = test_kill_process_group(self.id) == Err(Errno::SRCH)
            || (0..2).all(|_| only_zombies(self.id) && !self.reap());
        Ok(if gone { Seen::Gone } else { Seen::Stragglers })
    }

    /// Clears away those of the group that are ours. Returns whether there were any.
    fn reap(&self) -> bool {
        let mut any = false;
        while let Ok(Some(_)) = waitpgid(self.id, WaitOptions::NOHANG) {
            any = true;
        }
        any
    }

    /// Whether only the first process is the command.
    pub(crate) fn is_one_process(&self) -> bool {
        matches!(self.target, Target::Process(_))
    }

    /// The signal by which the leader was stopped, if it stands still.
    pub(crate) fn stopped_by(&self) -> Option<Signal> {
        let options = WaitIdOptions::STOPPED | WaitIdOptions::NOHANG | WaitIdOptions::NOWAIT;
        let status = waitid(WaitId::Pid(self.id), options).ok()??;
        status.stopping_signal().and_then(Signal::from_named_raw)
    }

    /// Reaps the leader, after what is left of its group has been told to stop.
    ///
    /// # Errors
    /// If the leader is not ours to wait for.
    pub(crate) fn reap_leader(&mut self) -> io::Result<()> {
        if let Some(status) = self.wait_for_leader(WaitIdOptions::empty())? {
            self.ended = Some(ended(&status));
        }
        Ok(())
    }

    fn wait_for_leader(&self, options: WaitIdOptions) -> io::Result<Option<WaitIdStatus>> {
        Ok(waitid(WaitId::Pid(self.id), WaitIdOptions::EXITED | WaitIdOptions::NOHANG | options)?)
    }

    /// Sends a signal to the whole group. One that is gone already is no failure.
    ///
    /// # Errors
    /// If nobody in the group may be signalled.
    pub(crate) fn signal(&self, signal: Signal) -> io::Result<()> {
        let sent = match self.target {
            Target::Group(id) => kill_process_group(id, signal),
            // A leader that was reaped is nobody's any more.
            Target::Process(_) if self.ended.is_some() => Ok(()),
            Target::Process(id) => kill_process(id, signal),
        };
        match sent {
            Ok(()) | Err(Errno::SRCH) => Ok(()),
            Err(error) => Err(error.into()),
        }
    }

    /// Tells the whole group to stop, also those in it that stand still.
    ///
    /// # Errors
    /// If nobody in the group may be signalled.
    pub(crate) fn terminate(&self) -> io::Result<()> {
        self.signal(Signal::TERM)?;
        self.signal(Signal::CONT)
    }
}

fn ended(status: &WaitIdStatus) -> Ended {
    match (status.exit_status(), status.terminating_signal()) {
        (Some(code), _) => Ended::Exited(code),
        (None, signal) => Ended::Killed(signal.unwrap_or(0)),
    }
}

/// Whether all that is left of a group are zombies, whose parents live outside of it and do not wait for them. They can
/// do nothing any more, and nobody but their parents can clear them away.
fn only_zombies(group: Pid) -> bool {
    let Ok(processes) = std::fs::read_dir("/proc") else { return false };
    let mut found = false;
    for process in processes.flatten() {
        let stat = std::fs::read_to_string(process.path().join("stat")).unwrap_or_default();
        match is_alive_in(&stat, group) {
            Some(true) => return false,
            Some(false) => found = true,
            None => {}
        }
    }
    found
}

/// Whether a process is alive, by its `stat`, if it belongs to this group.
fn is_alive_in(stat: &str, group: Pid) -> Option<bool> {
    // The name stands in brackets and may contain anything; state, parent and group follow it.
    let mut fields = stat.rsplit(") ").next().unwrap_or_default().split(' ');
    let (state, id) = (fields.next(), fields.nth(1)?.parse().ok());
    // A process whose first thread has ended looks like a zombie while the others run.
    let threads: u32 = fields.nth(14)?.parse().ok()?;
    (id == Some(group.as_raw_pid())).then_some(!matches!(state, Some("Z" | "X")) || threads > 1)
}

/// Makes fencepost the parent of what its descendants leave behind.
#[cfg(target_os = "linux")]
fn adopt_orphans() -> io::Result<()> {
    Ok(rustix::process::set_child_subreaper(Some(rustix::process::getpid()))?)
}

#[cfg(not(target_os = "linux"))]
#[allow(clippy::unnecessary_wraps, reason = "it can fail on Linux")]
fn adopt_orphans() -> io::Result<()> {
    Ok(())
}

/// Reaps adopted processes while the leader runs. Waiting for just any child could reap the leader itself.
fn reap_strays(ours: &[Option<Pid>]) {
    let main = std::process::id();
    let children = std::fs::read_to_string(format!("/proc/self/task/{main}/children")).unwrap_or_default();
    let children = children.split_ascii_whitespace().filter_map(|id| id.parse().ok().and_then(Pid::from_raw));
    for child in children.filter(|child| !ours.contains(&Some(*child))) {
        // Whoever still runs is reaped another time.
        let _ = waitpid(Some(child), WaitOptions::NOHANG);
    }
}

#[cfg(test)]
mod tests {
    use std::os::fd::OwnedFd;
    use std::os::unix::net::UnixStream;

    use fencepost::clock::Moment;
    use nix::sys::signal::SigSet;

    use super::*;

    fn start(line: impl Into<OwnedFd>) -> Start {
        Start { line: line.into(), mask: SigSet::empty(), until: Moment::NEVER }
    }

    fn spawn(command: &mut Command) -> io::Result<Group> {
        let (_, nobody) = UnixStream::pair()?;
        Group::spawn(command, Place::OwnGroup, start(nobody))
    }

    /// Looks until the group is in this state.
    fn until(group: &mut Group, seen: Seen) {
        while group.look(None).unwrap() != seen {
            std::thread::yield_now();
        }
    }

    #[test]
    fn the_leader_is_seen_before_it_is_reaped() {
        let mut group = spawn(Command::new("sh").args(["-c", "exit 7"])).unwrap();
        until(&mut group, Seen::LeaderExited);
        assert_eq!(group.ended(), None);
        assert_eq!(group.look(None).unwrap(), Seen::LeaderExited, "it stays a zombie");
        group.reap_leader().unwrap();
        assert_eq!(group.ended(), Some(Ended::Exited(7)));
        assert_eq!(group.look(None).unwrap(), Seen::Gone);
        group.terminate().unwrap();
    }

    #[test]
    fn stragglers_are_reached_by_a_signal_after_their_leader_is_gone() {
        let mut group = spawn(Command::new("sh").args(["-c", "sleep 1000 & exit 0"])).unwrap();
        until(&mut group, Seen::LeaderExited);
        group.reap_leader().unwrap();
        assert_eq!(group.look(None).unwrap(), Seen::Stragglers);
        group.signal(Signal::KILL).unwrap();
        until(&mut group, Seen::Gone);
    }

    #[test]
    fn a_signal_that_ends_the_leader_is_told() {
        let mut group = spawn(Command::new("sleep").arg("1000")).unwrap();
        assert_eq!(group.look(None).unwrap(), Seen::Running);
        group.signal(Signal::KILL).unwrap();
        until(&mut group, Seen::LeaderExited);
        group.reap_leader().unwrap();
        assert_eq!(group.ended(), Some(Ended::Killed(9)));
    }

    #[test]
    fn a_command_names_itself_to_the_warden_before_it_begins() {
        use std::io::Read;

        let (mut warden, line) = UnixStream::pair().unwrap();
        for (place, word) in [(Place::OwnGroup, "group"), (Place::OurGroup, "process")] {
            let mut command = Command::new("true");
            let mut group = Group::spawn(&mut command, place, start(line.try_clone().unwrap())).unwrap();
            let told = format!("{word} {}\n", group.id());
            let mut heard = vec![0; told.len()];
            warden.read_exact(&mut heard).unwrap();
            assert_eq!(String::from_utf8(heard).unwrap(), told);
            until(&mut group, Seen::LeaderExited);
            group.reap_leader().unwrap();
        }
    }

    #[test]
    fn a_command_does_not_begin_after_its_lease() {
        let (_, nobody) = UnixStream::pair().unwrap();
        let late = Start { until: Moment::START, ..start(nobody) };
        let error = Group::spawn(&mut Command::new("true"), Place::OwnGroup, late).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::TimedOut);
    }

    #[test]
    fn a_zombie_with_threads_is_alive() {
        let stat = |state, threads| {
            format!(
                "28427 (a) Z (b) {state} 1 77 27911 0 -1 4227084 94 0 0 0 0 0 0 0 20 0 {threads} 0 15 0 0"
            )
        };
        let group = |id| Pid::from_raw(id).unwrap();
        assert_eq!(is_alive_in(&stat("S", 1), group(77)), Some(true));
        assert_eq!(is_alive_in(&stat("Z", 1), group(77)), Some(false));
        assert_eq!(is_alive_in(&stat("Z", 2), group(77)), Some(true), "its first thread has ended");
        assert_eq!(is_alive_in(&stat("S", 1), group(78)), None);
        assert_eq!(is_alive_in("", group(77)), None);
    }

    #[test]
    fn a_command_that_does_not_exist_is_an_error() {
        let error = spawn(&mut Command::new("/nonexistent/command")).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::NotFound);
    }
}
