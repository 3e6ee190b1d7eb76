// Takes turns with ShedLock's JdbcTemplateLockProvider, with the time of the database. It never waits, so that it is asked in a loop.
//
// usage: java Turns PORT NAME FOLDER NUMBER

import java.io.PrintWriter;
import java.nio.file.Files;
import java.nio.file.Path;
import java.time.Duration;
import java.time.Instant;
import java.util.Optional;
import net.javacrumbs.shedlock.core.LockConfiguration;
import net.javacrumbs.shedlock.core.SimpleLock;
import net.javacrumbs.shedlock.provider.jdbctemplate.JdbcTemplateLockProvider;
import org.springframework.jdbc.core.JdbcTemplate;
import org.springframework.jdbc.datasource.SingleConnectionDataSource;

public final class Turns {
    /** The pause between two attempts. */
    private static final int PAUSE_MS = 10;

    private static Optional<SimpleLock> take(JdbcTemplateLockProvider provider, String name) {
        return provider.lock(new LockConfiguration(Instant.now(), name, Duration.ofSeconds(10), Duration.ZERO));
    }

    public static void main(String[] words) throws Exception {
        String name = words[1], number = words[3];
        Path folder = Path.of(words[2]);
        Path counter = folder.resolve("counter"), start = folder.resolve("start"), stop = folder.resolve("stop");
        int turn = Integer.parseInt(System.getenv("TURN_MS"));
        String url = "jdbc:postgresql://127.0.0.1:" + words[0] + "/postgres";
        SingleConnectionDataSource source = new SingleConnectionDataSource(url, "postgres", "", true);
        JdbcTemplateLockProvider provider = new JdbcTemplateLockProvider(JdbcTemplateLockProvider.Configuration.builder()
                .withJdbcTemplate(new JdbcTemplate(source))
                .usingDbTime()
                .build());
        // The first statement loads classes and connects, which takes longer than many turns.
        take(provider, "warm-up " + number).ifPresent(SimpleLock::unlock);
        try (PrintWriter log = new PrintWriter(Files.newBufferedWriter(folder.resolve("theirs-" + number)), true)) {
            while (!Files.exists(start)) {
                Thread.sleep(5);
            }
            while (!Files.exists(stop)) {
                Optional<SimpleLock> lock = take(provider, name);
                if (lock.isEmpty()) {
                    Thread.sleep(PAUSE_MS);
                    continue;
                }
                int count = Integer.parseInt(Files.readString(counter).trim());
                Thread.sleep(turn);
                Files.writeString(counter, Integer.toString(count + 1));
                log.println(System.currentTimeMillis() + " " + count + " 0");
                lock.get().unlock();
            }
        }
        source.destroy();
    }
}
