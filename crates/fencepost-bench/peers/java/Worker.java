// The loops of a worker of the bench (see src/workers.rs), for all peers in Java; tasks are threads.

import java.util.ArrayList;
import java.util.List;
import java.util.Locale;
import java.util.stream.Collectors;

public final class Worker {
    /** The warm-up, in which the JVM compiles what it will run. */
    private static final double WARM_UP = 1.5;

    /** A lock, as one task uses it. */
    public interface Lock {
        void acquire() throws Exception;

        void release() throws Exception;
    }

    /** The locks of a connected client. */
    public interface Locks {
        Lock lock(String name) throws Exception;
    }

    /** The results of one task. */
    private static final class Found {
        final List<Double> waits = new ArrayList<>();
        final List<double[]> spans = new ArrayList<>();
    }

    private interface Work {
        void on(Lock lock, Found found) throws Exception;
    }

    /** One clock for all processes. */
    private static double now() {
        return System.nanoTime() / 1e9;
    }

    private static void uncontended(Lock lock, double end, Found found) throws Exception {
        for (double begun = now(); begun < end; begun = now()) {
            lock.acquire();
            lock.release();
            found.waits.add(now() - begun);
        }
    }

    private static void contended(Lock lock, double end, long hold, long think, Found found) throws Exception {
        while (now() < end) {
            double asked = now();
            lock.acquire();
            double entered = now();
            Thread.sleep(hold);
            double left = now();
            lock.release();
            found.waits.add(entered - asked);
            found.spans.add(new double[] {entered, left});
            Thread.sleep(think);
        }
    }

    /** Runs this in one thread for each lock. */
    private static List<Found> all(List<Lock> locks, Work work) throws InterruptedException {
        List<Found> founds = new ArrayList<>();
        List<Thread> threads = new ArrayList<>();
        for (Lock lock : locks) {
            Found found = new Found();
            founds.add(found);
            threads.add(new Thread(() -> {
                try {
                    work.on(lock, found);
                } catch (Exception why) {
                    // A thread that dies would otherwise only be missing in the figures.
                    System.err.println(why);
                    Runtime.getRuntime().halt(1);
                }
            }));
        }
        for (Thread thread : threads) {
            thread.start();
        }
        for (Thread thread : threads) {
            thread.join();
        }
        return founds;
    }

    /** Executes an order: SORT KIND URL TASKS MILLIS HOLD_MS THINK_MS. */
    public static void work(String[] words, Locks locks) throws Exception {
        boolean contended = words[1].equals("contended");
        int tasks = Integer.parseInt(words[3]);
        double length = Integer.parseInt(words[4]) / 1e3;
        long hold = Long.parseLong(words[5]), think = Long.parseLong(words[6]);
        List<Lock> own = new ArrayList<>(), one = new ArrayList<>();
        for (int task = 0; task < tasks; task++) {
            own.add(locks.lock("bench/" + ProcessHandle.current().pid() + "/" + task));
            one.add(locks.lock("bench"));
        }
        double warm = now() + WARM_UP;
        all(own, (lock, found) -> uncontended(lock, warm, found));
        System.out.println("ready");
        System.in.read();
        double start = now(), end = start + length;
        List<Found> founds = contended
                ? all(one, (lock, found) -> contended(lock, end, hold, think, found))
                : all(own, (lock, found) -> uncontended(lock, end, found));
        tell(founds, now() - start);
    }

    private static void tell(List<Found> founds, double wall) {
        String turns = founds.stream().map(found -> "" + found.waits.size()).collect(Collectors.joining(","));
        String waits = founds.stream()
                .flatMap(found -> found.waits.stream())
                .map(Worker::number)
                .collect(Collectors.joining(","));
        String spans = founds.stream()
                .flatMap(found -> found.spans.stream())
                .map(span -> "[" + number(span[0]) + "," + number(span[1]) + "]")
                .collect(Collectors.joining(","));
        System.out.printf(
                "{\"turns\":[%s],\"waits\":[%s],\"spans\":[%s],\"wall\":%s}%n", turns, waits, spans, number(wall));
    }

    private static String number(double value) {
        return String.format(Locale.ROOT, "%.9f", value);
    }
}
